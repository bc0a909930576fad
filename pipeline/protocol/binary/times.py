"""Dates and times: style ISO, time zone UTC, intervals in style `postgres`.

Days and microseconds count from 2000-01-01 in the proleptic Gregorian calendar; the year before 1 is 1 BC.
Values out of PostgreSQL's own range are malformed.
"""

import struct

_INT4, _INT8 = struct.Struct(">i"), struct.Struct(">q")
_TIMETZ = struct.Struct(">qi")
_INTERVAL = struct.Struct(">qii")

_DAY = 86_400_000_000  # microseconds
_MIN_DAY, _END_DAY = -2_451_545, 2_145_031_949  # 4714-11-24 BC, 5874898-01-01
_MIN_MOMENT, _END_MOMENT = _MIN_DAY * _DAY, 9_223_371_331_200_000_000  # the end is 294277-01-01
_ZONE_END = 16 * 3600
_EPOCH = 730_425  # days from 0000-03-01 to 2000-01-01
_FOUR_CENTURIES = 146_097  # days


def read_date(value: bytes) -> bytes:
    """Return the text of a date."""
    (days,) = _INT4.unpack(value)
    if days in (-(2**31), 2**31 - 1):
        return b"infinity" if days > 0 else b"-infinity"
    if not _MIN_DAY <= days < _END_DAY:
        raise ValueError
    date, era = _date(days)
    return (date + era).encode()


def read_timestamp(value: bytes) -> bytes:
    """Return the text of a timestamp."""
    return _moment(value, "")


def read_timestamptz(value: bytes) -> bytes:
    """Return the text of a timestamptz in UTC."""
    return _moment(value, "+00")


def read_time(value: bytes) -> bytes:
    """Return the text of a time."""
    return _time(*_INT8.unpack(value)).encode()


def read_timetz(value: bytes) -> bytes:
    """Return the text of a timetz; its offset is in seconds west of UTC."""
    micros, west = _TIMETZ.unpack(value)
    if abs(west) >= _ZONE_END:
        raise ValueError
    minutes, seconds = divmod(abs(west), 60)
    hours, minutes = divmod(minutes, 60)
    zone = f"{'+' if west <= 0 else '-'}{hours:02d}"
    if minutes or seconds:
        zone += f":{minutes:02d}"
    if seconds:
        zone += f":{seconds:02d}"
    return (_time(micros) + zone).encode()


def read_interval(value: bytes) -> bytes:
    """Return the text of an interval of PostgreSQL 17 and newer, which may be infinite."""
    micros, days, months = _INTERVAL.unpack(value)
    if (micros, days, months) == (2**63 - 1, 2**31 - 1, 2**31 - 1):
        return b"infinity"
    if (micros, days, months) == (-(2**63), -(2**31), -(2**31)):
        return b"-infinity"
    return read_finite_interval(value)


def read_finite_interval(value: bytes) -> bytes:
    """Return the text of an interval of PostgreSQL 16 and older, which is finite."""
    micros, days, months = _INTERVAL.unpack(value)
    years, months = divmod(months, 12) if months >= 0 else (-(-months // 12), -(-months % 12))
    parts = []
    was_negative = False
    for count, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            plus = "+" if was_negative and count > 0 else ""
            parts.append(f"{plus}{count} {unit}{'' if count == 1 else 's'}")
            was_negative = count < 0
    if micros or not parts:
        sign = "-" if micros < 0 else "+" if was_negative else ""
        parts.append(sign + _clock(abs(micros)))
    return " ".join(parts).encode()


def _moment(value: bytes, zone: str) -> bytes:
    (micros,) = _INT8.unpack(value)
    if micros in (-(2**63), 2**63 - 1):
        return b"infinity" if micros > 0 else b"-infinity"
    if not _MIN_MOMENT <= micros < _END_MOMENT:
        raise ValueError
    days, micros = divmod(micros, _DAY)
    date, era = _date(days)
    return f"{date} {_clock(micros)}{zone}{era}".encode()


def _date(days: int) -> tuple[str, str]:
    """Return a date without its era, and the era."""
    # In years that begin on 1 March, a leap day is the last day of its year.
    cycles, day = divmod(days + _EPOCH, _FOUR_CENTURIES)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += 400 * cycles + (month >= 10)
    month += -9 if month >= 10 else 3
    era_year = year if year > 0 else 1 - year
    return f"{era_year:04d}-{month:02d}-{day + 1:02d}", "" if year > 0 else " BC"


def _time(micros: int) -> str:
    if not 0 <= micros <= _DAY:
        raise ValueError
    return _clock(micros)


def _clock(micros: int) -> str:
    seconds, micros = divmod(micros, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"
