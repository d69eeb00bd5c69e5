"""A SuperLink and SuperNodes on this machine: TLS, node authentication, and an end for every process."""

import contextlib
import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsieve.flower.quiet import QUIET

BIN = Path(sys.executable).parent
PATIENCE = 240
"""Seconds until a process that should have done something is taken for stuck. Generous: the machine may be busy."""


class Loopback:
    """One SuperLink; nodes by name. `close` ends whatever was started, and what that has started in turn."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.processes = {}
        folder.mkdir(exist_ok=True)
        certificates(folder)
        self.home(None)

    def home(self, name):
        """A Flower home for the SuperLink and the command line (None), or for a node."""
        home = self.folder / f"home-{name or 'superlink'}"
        if not home.exists():
            home.mkdir()
            (home / "config.toml").write_text(
                f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
                f'root-certificates = "{self.folder / "ca.crt"}"\n'
            )
        return home

    def environment(self, name):
        home = self.home(name)
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
        return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home), "HOME": str(home), "OMP_NUM_THREADS": "1"}

    def start(self, name, *command):
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            [BIN / command[0], *map(str, command[1:])],
            env=self.environment(None if name == "superlink" else name),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        return self.processes[name]

    def start_superlink(self):
        certificate = [f"--ssl-{what}={self.folder / file}" for what, file in TLS_FILES.items()]
        options = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self.start("superlink", "flower-superlink", "--host=127.0.0.1", f"--port={self.port}", *certificate, *options)
        self.wait_until(lambda: reachable(self.port), "the SuperLink listens")

    def start_node(self, name, data, *, key=None, ca="ca.crt", **config):
        """A SuperNode that signs with its own key; `key` names another's."""
        config = {"data": data, "name": name, "state": self.folder / f"state-{name}", **config}
        written = " ".join(f'{key}="{value}"' for key, value in config.items())
        return self.start(
            name, "flower-supernode", f"--superlink=127.0.0.1:{self.port}", f"--root-certificates={self.folder / ca}",
            f"--auth-supernode-private-key={self.folder / (key or name)}.key", f"--port={free_port()}",
            "--node-config", written,
        )  # fmt: skip

    def register(self, name):
        write_key(self.folder / f"{name}.key")
        self.flwr("supernode", "register", self.folder / f"{name}.key.pub", "here")

    def flwr(self, *command):
        done = subprocess.run(
            [BIN / "flwr", *map(str, command)], env=self.environment(None), cwd=self.folder, capture_output=True,
            text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_app(self, app):
        return json.loads(self.flwr("run", app, "here", "--format", "json"))["run-id"]

    def kill(self, name):
        """The process and all its children, at once, as when a machine loses power."""
        self._end([self.processes.pop(name)])

    def close(self):
        self._end(self.processes.values())
        self.processes = {}

    def _end(self, processes):
        families = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                families += [parent, *parent.children(recursive=True)]
        for one in families:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for process in processes:
            process.wait()
        psutil.wait_procs(families, timeout=10)

    def wait_until(self, happened, what, patience=PATIENCE):
        ends = time.monotonic() + patience
        while not (found := happened()):
            if time.monotonic() > ends:
                raise AssertionError(f"not within {patience} s: {what}\n{self.logs()}")
            time.sleep(0.5)
        return found

    def wait_for_run(self, folder, log="superlink"):
        """Until the run has its summary; fails at once if the ServerApp failed."""

        def over():
            text = (self.folder / f"{log}.log").read_text(errors="replace")
            assert "ServerApp raised an exception" not in text, text[-3000:]
            return (folder / "report.html").exists() or (folder / "summary.json").exists()

        self.wait_until(over, f"{folder} is finished", 4 * PATIENCE)

    def logs(self):
        shown = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log")]
        return "\n".join(shown)


TLS_FILES = {"certfile": "server.pem", "keyfile": "server.key", "ca-certfile": "ca.crt"}


def certificates(folder, ca="ca.crt"):
    """A certificate authority, and a certificate of 127.0.0.1 by it."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issued = _certificate("test CA", authority.public_key(), "test CA", authority, is_ca=True)
    (folder / ca).write_bytes(issued.public_bytes(serialization.Encoding.PEM))
    if ca == "ca.crt":
        signed = _certificate("127.0.0.1", server.public_key(), "test CA", authority, is_ca=False)
        (folder / "server.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        write_private(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def _certificate(name, key, issuer, signer, *, is_ca):
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not is_ca:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA384())


def write_key(path):
    """A node's pair of keys in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` makes it."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public)


def write_private(path, key, form):
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)


PORTS = set()
"""Those given out: a process that has not begun to listen would otherwise share its port with the next."""


def free_port():
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        if port not in PORTS:
            PORTS.add(port)
            return port


def reachable(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
