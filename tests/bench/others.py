"""Proxies of others, each in a virtual environment of its own; one that cannot be had is named.

None of them is a requirement of ours. A first run installs what it can below var/bench.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.peers import ROOT, Missing, Peer, launch
from tests.rig.network import free_port

HOME = ROOT / "var" / "bench"
INSTALL_S = 900


def _python_of(name: str, *packages: str) -> Path:
    """Return the folder of the programs of a virtual environment with these packages."""
    venv = HOME / name
    done = venv / ".installed"
    if not done.exists():
        steps = (
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin" / "pip"), "install", "-q", *packages],
        )
        for step in steps:
            try:
                subprocess.run(step, capture_output=True, check=True, timeout=INSTALL_S)
            except (subprocess.SubprocessError, OSError):
                raise Missing(f"{' '.join(packages)} cannot be installed") from None
        done.touch()
    return venv / "bin"


def vllm_router(folder: Path, port: int, engine: int) -> Peer:
    """Start vLLM's Rust router: round robin over one engine, no keys, no quotas."""
    argv = [
        str(_python_of("vllm-router", "vllm-router==0.1.17") / "vllm-router"),
        "--host", "127.0.0.1", "--port", str(port),
        "--worker-urls", f"http://127.0.0.1:{engine}", "--policy", "round_robin",
        "--max-concurrent-requests", "4096", "--queue-size", "4096", "--log-level", "error",
        "--prometheus-port", str(free_port()),
    ]  # fmt: skip
    return launch("vllm-router", argv, port, "/health")


def sglang_router(folder: Path, port: int, engine: int) -> Peer:
    """Start SGLang's Rust router the same way."""
    argv = [
        str(_python_of("sglang-router", "sglang-router==0.3.2") / "python"),
        "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
        "--worker-urls", f"http://127.0.0.1:{engine}", "--policy", "round_robin",
        "--prometheus-port", str(free_port()), "--log-level", "error",
    ]  # fmt: skip
    return launch("sglang-router", argv, port, "/health")


def litellm(folder: Path, port: int, engine: int) -> Peer:
    """Start LiteLLM with one worker, without database, cache and telemetry."""
    programs = _python_of("litellm", "litellm[proxy]==1.80.0")
    config = folder / "litellm.yaml"
    config.write_text(
        f"""model_list:
  - model_name: bench
    litellm_params:
      {{model: openai/bench, api_base: "http://127.0.0.1:{engine}/v1", api_key: sk-engine}}
general_settings: {{master_key: sk-bench, disable_spend_logs: true}}
litellm_settings: {{telemetry: false, request_timeout: 600, num_retries: 0, set_verbose: false}}
"""
    )
    argv = [
        str(programs / "litellm"), "--config", str(config), "--host", "127.0.0.1",
        "--port", str(port), "--num_workers", "1", "--telemetry", "False",
    ]  # fmt: skip
    peer = launch(
        "litellm", argv, port, "/health/liveliness", patience_s=90,
        LITELLM_LOG="ERROR", LITELLM_MODE="PRODUCTION", LITELLM_LOCAL_MODEL_COST_MAP="True",
    )  # fmt: skip
    peer.secret = "sk-bench"
    return peer


def portkey(folder: Path, port: int, engine: int) -> Peer:
    """Start Portkey's gateway, with the versions of its server under which streams work."""
    node, npm, home = shutil.which("node"), shutil.which("npm"), HOME / "portkey"
    if node is None or npm is None:
        raise Missing("node and npm are not installed")
    program = home / "node_modules/@portkey-ai/gateway/build/start-server.js"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        wanted = {
            "dependencies": {"@portkey-ai/gateway": "1.15.2"},
            "overrides": {"@hono/node-server": "1.13.7", "hono": "4.9.7"},
        }
        (home / "package.json").write_text(json.dumps(wanted))
        argv = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(argv, cwd=home, capture_output=True, timeout=INSTALL_S)
        if done.returncode or not program.exists():
            raise Missing("@portkey-ai/gateway cannot be installed")
    peer = launch(
        "portkey", [node, str(program), "--headless", f"--port={port}"], port, "/",
        NODE_ENV="production", TRUSTED_CUSTOM_HOSTS="127.0.0.1,localhost",
    )  # fmt: skip
    host = f"http://127.0.0.1:{engine}/v1"
    peer.headers = f"x-portkey-provider: openai\r\nx-portkey-custom-host: {host}\r\n"
    return peer
