"""The connection to a cluster, by the variables of `millrace worker`, or to that of `millrace up` on this machine."""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import WorkerError

DEFAULT_URL = "nats://127.0.0.1:4222"


@dataclass(frozen=True)
class ConnectionSettings:
    """The servers of a cluster and the credentials for them."""

    servers: list[str]
    options: dict[str, Any]
    """The options of the NATS client."""


def read_settings(url: str | None, variables: Mapping[str, str] | None = None) -> ConnectionSettings:
    """Returns the connection: to `url`, to MILLRACE_NATS_URL, or to the cluster of `millrace up` on this machine."""
    found = {name: value for name, value in (os.environ if variables is None else variables).items() if value}
    options: dict[str, Any] = {}
    if url is None and "MILLRACE_NATS_URL" not in found:
        local = read_cluster_file(found)
        if local is not None:
            url = local["url"]
            options = {"user": local["user"], "password": local["password"]}
    url = url or found.get("MILLRACE_NATS_URL", DEFAULT_URL)
    options.update(read_credentials(found))
    context = read_tls(found)
    if context is not None:
        options["tls"] = context
    return ConnectionSettings([server.strip() for server in url.split(",")], options)


def read_credentials(variables: Mapping[str, str]) -> dict[str, Any]:
    """Returns the credentials; the first variable wins."""
    if file := variables.get("MILLRACE_NATS_CREDS"):
        return {"user_credentials": file, "inbox_prefix": inbox_of_seed(find_seed(read_text(file), file))}
    seed = variables.get("MILLRACE_NATS_NKEY_SEED")
    if file := variables.get("MILLRACE_NATS_NKEY"):
        seed = find_seed(read_text(file), file)
    if seed is not None:
        return {"nkeys_seed_str": seed, "inbox_prefix": inbox_of_seed(seed)}
    if user := variables.get("MILLRACE_NATS_USER"):
        return {"user": user, "password": variables.get("MILLRACE_NATS_PASSWORD", "")}
    return {}


def read_tls(variables: Mapping[str, str]) -> ssl.SSLContext | None:
    """Returns the TLS settings, if there are any."""
    authorities = variables.get("MILLRACE_NATS_CA")
    certificate, key = variables.get("MILLRACE_NATS_CERT"), variables.get("MILLRACE_NATS_KEY")
    if (certificate is None) != (key is None):
        raise WorkerError("MILLRACE_NATS_CERT and MILLRACE_NATS_KEY belong together: set both or none")
    if authorities is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise WorkerError(f"the certificates of MILLRACE_NATS_CA, _CERT and _KEY can't be used: {error}") from error
    return context


def read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise WorkerError(f"the credentials in {path} can't be read: {error}") from error


def find_seed(text: str, path: str) -> str:
    """Returns the seed of an nkey in a file."""
    for line in text.splitlines():
        word = line.strip()
        if word.startswith("SU") and word.isalnum() and len(word) >= 50:
            return word
    raise WorkerError(f"{path} contains no seed of a user's nkey (a line that begins with SU)")


def inbox_of_seed(seed: str) -> str:
    """Returns the prefix of the subjects on which this identity may receive replies."""
    try:
        import nkeys  # type: ignore[import-untyped]

        return "_INBOX." + str(nkeys.from_seed(seed.encode()).public_key.decode())
    except ImportError as error:
        raise WorkerError("nkeys need the package nkeys: pip install 'millrace-client[worker]'") from error
    except Exception as error:  # The library has an error for each mistake.
        raise WorkerError(f"the seed of the nkey is invalid: {error}") from error


def read_cluster_file(variables: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the address and the credentials of the cluster on this machine; `None` if none runs."""
    folder = Path(variables["MILLRACE_DATA"]) if "MILLRACE_DATA" in variables else default_data_folder(variables)
    try:
        cluster = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
        return {name: str(cluster[name]) for name in ("url", "user", "password")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkerError(f"{folder / 'cluster.json'} can't be read: {error!r}; give the URL of the server") from error


def default_data_folder(variables: Mapping[str, str]) -> Path:
    """Returns the folder in which `millrace up` keeps its data by default."""
    base = Path(variables.get("XDG_DATA_HOME", ""))
    if base.is_absolute():
        return base / "millrace"
    home = Path(variables.get("HOME", "")) if variables.get("HOME") else None
    if home is None:
        return Path(".millrace")
    below = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return home / below / "millrace"
