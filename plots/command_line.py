"""Arguments that several programs take."""

import argparse
import re


def whole_numbers(text):
    """[4, 5, 8] of '4,5,8'."""
    if not re.fullmatch(r" *[0-9]{1,9} *(, *[0-9]{1,9} *)*", text):
        raise argparse.ArgumentTypeError(f"{text!r:.60} is not a list of whole numbers such as 4,5,8")
    return [int(number) for number in text.split(",")]
