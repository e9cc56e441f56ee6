"""Prompt templates of recipes: text with fields in braces."""

import string


def template_fields(template: str) -> set[str]:
    """Return the names in braces; `ValueError` if the braces do not match."""
    try:
        return {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise ValueError(f"user_prompt is not a format template ({error}): write {{{{ for a brace.") from error


def check_template(template: str, required: set[str], allowed: set[str]) -> None:
    """Raise `ValueError` unless `template` has all required fields and only allowed ones."""
    fields = template_fields(template)
    if required - fields or fields - allowed:
        wrong = sorted(fields - allowed) or sorted(required - fields)
        raise ValueError(
            f"user_prompt {'has unknown fields' if fields - allowed else 'lacks'} {wrong}: it must have "
            f"{sorted(required)} and may have {sorted(allowed)}, in braces."
        )
