"""Answers in words: bold words, names, terms and ordinals, and words that the question offers."""

import pytest

from tests.support.accuracy import score

TRIANGLE = "A triangle has sides of 5, 5 and 8. Is it equilateral, isosceles or scalene?"
SODIUM = "What is the chemical symbol for sodium?"
CAPITAL = "What is the capital of Australia?"
PROCESS = "What is the name of the process by which a liquid turns into a gas?"
QUADRANT = "In what quadrant does the point (-3, 5) lie?"
SIDES = "What type of triangle has three equal sides?"
PLANET = "What is the largest planet in our solar system?"
CELSIUS = "At what temperature, in degrees Celsius, does water boil?"
IN_TWO_UNITS = "It boils at 100 degrees Celsius, which is equal to 212 degrees Fahrenheit."
CONCERT = "Two tickets are $50 each, with fees of $35 in all. How much will it cost?"
EACH = "Two tickets are $50 each, with fees of $35 in all. How much is it per person?"
CONTINENT = "Which continent is the Sahara located on?\nA. Asia\nB. Africa\nC. Europe"
BACTERIA = (
    "200 bacteria double every hour. How many are there after 4 hours?\nA. 800\nB. 3200\nC. 6400"
)


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (TRIANGLE, "isosceles", "Two sides are equal, so it is \\textbf{isosceles}.", 1),
        (TRIANGLE, "isosceles", "It is $\\textbf{isosceles}$.", 1),
        (TRIANGLE, "isosceles", "Two sides are equal, so it is \\textbf{scalene}.", 0),
        (TRIANGLE, "isosceles", "It is not \\textbf{isosceles}, but \\textbf{scalene}.", 0),
        (TRIANGLE, "isosceles", "The triangle is isosceles.", 1),
        (TRIANGLE, "isosceles", "The triangle is scalene.", 0),
        (TRIANGLE, "isosceles", "The triangle is not isosceles.", 0),
        (TRIANGLE, "isosceles", "The triangle is isosceles or scalene.", 0),
        (TRIANGLE, "isosceles", "The triangle is isosceles, scalene.", 0),
        ("Is 91 prime or composite?", "composite", "As 91 = 7 · 13, 91 is composite.", 1),
        ("Is 91 prime or composite?", "composite", "91 is prime.", 0),
        (SODIUM, "Na", "The symbol is **Na** (from the Latin *natrium*).", 1),
        (CAPITAL, "The", "The capital moved to Canberra.", 0),
        ("What is the symbol for helium?", "He", "The symbol for helium is He.", 1),
        ("What is the symbol for indium?", "In", "The symbol for indium is In.", 1),
        (SODIUM, "Na", "The symbol is **N** (from the Latin *natrium*).", 0),
        (SODIUM, "Na", "The symbol is **So** (which is not **Na**).", 0),
        (SODIUM, "So", "The symbol is **So** (which may be Na or So).", 0),
        (SODIUM, "So", "The symbol is **So** (or Na).", 0),
        (CAPITAL, "Canberra", "Many think it is Sydney, but the capital is Canberra.", 1),
        (CAPITAL, "Canberra", "Although Sydney is larger, the capital is Canberra.", 1),
        (CAPITAL, "Canberra", "The capital of Australia is Canberra, not Sydney.", 1),
        (CAPITAL, "Canberra", "The capital of Australia is not Canberra.", 0),
        (CAPITAL, "Canberra", "The capital is Canberra, but it may be Sydney.", 0),
        (CAPITAL, "Canberra", "Many think it is Canberra, but the capital is Sydney.", 0),
        (CAPITAL, "Canberra", "The capital of Australia is Sydney, not Canberra.", 0),
        (PROCESS, "evaporation", "Molecules escape. This process is called evaporation.", 1),
        (PROCESS, "evaporation", "The process is known as evaporation, rather than boiling.", 1),
        (PROCESS, "evaporation", "This process is called condensation.", 0),
        (PROCESS, "evaporation", "This process is not called evaporation.", 0),
        (PROCESS, "evaporation", "Here the opposite is called evaporation.", 0),
        (QUADRANT, "Quadrant II", "So the point lies in the second quadrant.", 1),
        (QUADRANT, "Quadrant II", "The point (-3, 5) lies in Quadrant II.", 1),
        (QUADRANT, "II", "The point lies in the 2nd quadrant.", 1),
        (QUADRANT, "Quadrant II", "So the point lies in the third quadrant.", 0),
        (QUADRANT, "Quadrant II", "So the point lies in the second or third quadrant.", 0),
        (SIDES, "equilateral", "It is called an **equilateral** triangle.", 1),
        (SIDES, "equilateral", "It is called an **isosceles** triangle.", 0),
        (SIDES, "equilateral", "It is not an **equilateral** triangle.", 0),
        (SIDES, "equilateral", "It is an **equilateral** hexagon.", 0),
        (PLANET, "Jupiter", "Jupiter is the largest planet. It is a gas giant.", 1),
        (PLANET, "Jupiter", "Jupiter is the largest planet. It is larger than Saturn.", 1),
        (PLANET, "Jupiter", "Jupiter is the largest planet. But it might be Saturn.", 0),
        (PLANET, "Jupiter", "Jupiter is the largest planet. No, Saturn is the largest.", 0),
        (PLANET, "Jupiter", "Jupiter is the largest planet. That is wrong.", 0),
        (PLANET, "Jupiter", "Saturn is the largest planet. It is larger than Jupiter.", 0),
        (PLANET, "Jupiter", "It is **Jupiter**. Galileo saw four of its moons.", 1),
        (PLANET, "Jupiter", "It is **Saturn**. Galileo saw four moons of Jupiter.", 0),
        (CELSIUS, "100 °C", IN_TWO_UNITS, 1),
        (CELSIUS, "212", IN_TWO_UNITS, 0),
        (CONCERT, "135", "It will cost them $135. That works out to $67.50 per person.", 1),
        (CONCERT, "67.5", "It will cost them $135. That works out to $67.50 per person.", 0),
        (EACH, "67.5", "It will cost them $135. That works out to $67.50 per person.", 1),
        (CONCERT, "135", "It costs $135. You can check: 2 * 67.5 = 135.", 1),
        (CONTINENT, "B", "The Sahara is located in Africa.", 1),
        (CONTINENT, "B", "The Sahara is located in Asia.", 0),
        (CONTINENT, "B", "The Sahara is located in Asia, not Africa.", 0),
        (BACTERIA, "B", "$200 \\times 2^4 = 3200$. So there are 3200 bacteria after 4 hours.", 1),
        (BACTERIA, "B", "$200 \\times 2^5 = 6400$. So there are 6400 bacteria after 4 hours.", 0),
        (BACTERIA, "B", "After 4 hours there are 3200 of them, so the answer is C.", 0),
    ],
)
def test_answers_in_words(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict
