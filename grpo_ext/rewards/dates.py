"""Parse and compare dates such as `July 20, 1969`, `the 20th of July 1969` and `1969-07-20`."""

import datetime
import re
from typing import NamedTuple

MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
WEEKDAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs?)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_NAMED_MONTH = rf"{MONTH}(?![a-z])\.?"
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?(?![0-9])"
_YEAR = r"[0-9]{4}(?![0-9])"
DATE = (
    rf"(?:{_DAY} (?:of )?{_NAMED_MONTH}(?:,? {_YEAR})?"
    rf"|{_NAMED_MONTH} {_DAY}(?:,? {_YEAR})?"
    rf"|{_NAMED_MONTH},? {_YEAR})"
)
_WHOLE_DATE = re.compile(rf"(?:{WEEKDAY}\.?,? )?(?:[Tt]he )?({DATE})\.?")
_ISO_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(MONTH)
_DAY_DIGITS = re.compile(r"(?<![0-9])[0-9]{1,2}(?![0-9])")
_YEAR_DIGITS = re.compile(r"[0-9]{4}")
LEAP_YEAR = 2000


class Date(NamedTuple):
    """A date; `year` or `day` is `None` if the date does not include it."""

    year: int | None
    month: int
    day: int | None


def date_of(text: str) -> Date | None:
    """Parse a string that consists of a date; return `None` for any other string.

    Also return `None` for a date that does not exist, such as `1969-02-30`.
    """
    iso = _ISO_DATE.fullmatch(text)
    if iso is not None:
        return existing(Date(int(iso[1]), int(iso[2]), int(iso[3])))
    match = _WHOLE_DATE.fullmatch(text)
    if match is None:
        return None
    name = _MONTH.search(match[1])
    assert name is not None  # every alternative of `DATE` has a month
    month = _MONTHS.index(name[0][:3].lower()) + 1
    return existing(Date(int_of(_YEAR_DIGITS, match[1]), month, int_of(_DAY_DIGITS, match[1])))


def looks_like_date(text: str) -> bool:
    """Return whether a string has the form `1969-07-20`, also if there is no such date."""
    return _ISO_DATE.fullmatch(text) is not None


def existing(parts: Date) -> Date | None:
    """Return a date if it exists, else `None`; a date without a year must exist in some year."""
    year = LEAP_YEAR if parts.year is None else parts.year
    day = 1 if parts.day is None else parts.day
    try:
        datetime.date(year, parts.month, day)
    except ValueError:
        return None
    return parts


def int_of(digits: re.Pattern[str], text: str) -> int | None:
    match = digits.search(text)
    return None if match is None else int(match[0])


def same_date(expected: Date, actual: Date | None) -> bool:
    """Return whether two dates are equal, ignoring a year that only `actual` has.

    Return `False` if `actual` is `None`.
    """
    if actual is None or expected[1:] != actual[1:]:
        return False
    return expected.year in (None, actual.year)
