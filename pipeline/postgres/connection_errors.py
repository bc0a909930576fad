"""What a refused connection says, and what to do about it.

The texts are libpq's and the server's, of several majors; none of them has an SQLSTATE on the client's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Signs of a text, and what to do; the first that fits counts.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("does not match host name", "could not get server's host name"),
        "Let host in source.conninfo be a name that the certificate is for (hostaddr may give the address),"
        " or have the server's certificate issued for this one.",
    ),
    (
        ("root certificate file",),
        "Let sslrootcert in source.conninfo, or PGSSLROOTCERT, name the file of the CA's certificate.",
    ),
    (
        # the second where a CA has the right name and another key
        ("certificate verify failed", "signature failure"),
        "Let sslrootcert in source.conninfo, or PGSSLROOTCERT, name the CA that signed the server's"
        " certificate; where that is the right one, something else answers under the server's name.",
    ),
    (
        ("does not support SSL",),
        "Turn on ssl at the server; sslmode=disable in source.conninfo would send everything in the clear.",
    ),
    (
        ("no pg_hba.conf entry", "pg_hba.conf rejects"),
        "Let the server's pg_hba.conf take this role from this host; where it asks for TLS (hostssl), set"
        " sslmode=verify-full in source.conninfo.",
    ),
    (
        ("no password supplied",),
        "Give the password by PGPASSWORD, PGPASSFILE (a file that nobody else can read) or a ${VARIABLE} in"
        " source.conninfo.",
    ),
    (
        ("password authentication failed", "empty password returned"),
        "Correct the password in PGPASSWORD, in PGPASSFILE or behind source.conninfo, or set another with"
        " ALTER ROLE.",
    ),
    (("is not permitted to log in",), "Run ALTER ROLE … LOGIN as a superuser."),
    (("permission denied for database",), "Run GRANT CONNECT ON DATABASE … TO … as its owner."),
)


def connection_sentence(text: str, given: Mapping[str, Any]) -> str:
    """Return one sentence for a connection that was refused with a text; `given` are the conninfo's words."""
    if "replication role to start walsender" in text or "permission denied to start WAL sender" in text:
        user = given.get("user") or "in use"
        return (
            f"The role {user} may not replicate: run ALTER ROLE … REPLICATION as a superuser"
            " (on RDS: GRANT rds_replication TO …); the route sql needs the same right."
        )
    if "max_wal_senders" in text:
        return "All walsenders of the source are in use: raise max_wal_senders, or end another one."
    otherwise = "Check source.conninfo, and that the server is up."
    fix = next((fix for signs, fix in _ADVICE if any(sign in text for sign in signs)), otherwise)
    return f"Cannot connect to the source: {text}. {fix}"


def is_torn(conninfo: str, given: Mapping[str, Any]) -> bool:
    """Tell whether libpq took the rest of a password that was not percent-encoded for host or database.

    It would repeat that rest: `postgresql://me:se@cret@host/db` is the host `cret@host`.
    """
    if "://" not in conninfo:
        return False
    host, database = str(given.get("host") or ""), str(given.get("dbname") or "")
    return "@" in host[1:] or ("@" in database and given.get("user") is None)


def missing_right(text: str, user: str) -> str:
    """Return what to run where the server denies a role the rows of a table with a text."""
    role = '"' + user.replace('"', '""') + '"'
    if "row-level security" in text:
        return f"run ALTER ROLE {role} BYPASSRLS as a superuser"
    if "for schema" in text:
        return f"run GRANT USAGE ON SCHEMA … TO {role} as its owner"
    return f"run GRANT SELECT ON … TO {role} as its owner"
