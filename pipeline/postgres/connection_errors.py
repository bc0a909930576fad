"""Errors of a refused connection or a missing privilege, with what to do.

They are found by the messages of libpq and of several majors of the server; a failed connection has no
SQLSTATE on the client's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.postgres.sql_text import quote_identifier

# Parts of a message, and what to do; the first match counts.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("does not match host name", "could not get server's host name"),
        "Set host in source.conninfo to a name in the server's certificate (hostaddr may have the address),"
        " or have a certificate issued for this host.",
    ),
    (
        ("root certificate file",),
        "Set sslrootcert in source.conninfo, or PGSSLROOTCERT, to the file of the CA's certificate.",
    ),
    (
        # The second message is for a CA with the right name and another key.
        ("certificate verify failed", "signature failure"),
        "Set sslrootcert in source.conninfo, or PGSSLROOTCERT, to the CA that signed the server's"
        " certificate. If it is that already, another machine answers under the server's name.",
    ),
    (
        ("does not support SSL",),
        "Set ssl = on at the server. With sslmode=disable in source.conninfo, nothing would be encrypted.",
    ),
    (
        ("no pg_hba.conf entry", "pg_hba.conf rejects"),
        "Add an entry for this role and this host to the server's pg_hba.conf. If the entry is hostssl, set"
        " sslmode=verify-full in source.conninfo.",
    ),
    (
        ("no password supplied",),
        "Set PGPASSWORD, PGPASSFILE (a file that only you can read), or a ${VARIABLE} in source.conninfo.",
    ),
    (
        ("password authentication failed", "empty password returned"),
        "Correct the password in PGPASSWORD, PGPASSFILE or the variable in source.conninfo, or set a new one"
        " with ALTER ROLE.",
    ),
    (("is not permitted to log in",), "Run ALTER ROLE … LOGIN as a superuser."),
    (("permission denied for database",), "Run GRANT CONNECT ON DATABASE … TO … as its owner."),
)


def describe_refusal(message: str, keywords: Mapping[str, Any]) -> str:
    """Return the error for a connection that was refused with `message`; `keywords` are the conninfo's."""
    if "replication role to start walsender" in message or "permission denied to start WAL sender" in message:
        user = keywords.get("user")
        role = quote_identifier(str(user)) if user else "…"
        return (
            f"The role {user or 'in use'} may not replicate. Run ALTER ROLE {role} REPLICATION as a superuser"
            f" (on RDS: GRANT rds_replication TO {role}). The route sql needs the same privilege."
        )
    if "max_wal_senders" in message:
        return "All walsenders of the source are in use. Raise max_wal_senders, or end another one."
    default = "Check source.conninfo, and that the server is running."
    advice = next((advice for parts, advice in _ADVICE if any(part in message for part in parts)), default)
    return f"Cannot connect to the source: {message}. {advice}"


def splits_password(conninfo: str, keywords: Mapping[str, Any]) -> bool:
    """Return whether libpq parsed part of a password as host or database, and would print it in a message.

    A password that is not percent-encoded does that: `postgresql://me:se@cret@host/db` has the host
    `cret@host`.
    """
    if "://" not in conninfo:
        return False
    host, database = str(keywords.get("host") or ""), str(keywords.get("dbname") or "")
    return "@" in host[1:] or ("@" in database and keywords.get("user") is None)


def privilege_advice(message: str, user: str) -> str:
    """Return what to run if the server denied a role the rows of a table with `message`."""
    role = quote_identifier(user)
    if "row-level security" in message:
        return f"Run ALTER ROLE {role} BYPASSRLS as a superuser."
    if "for schema" in message:
        return f"Run GRANT USAGE ON SCHEMA … TO {role} as its owner."
    return f"Run GRANT SELECT ON … TO {role} as its owner."
