"""Servers that are too heavy for every run; `make nightly` builds their environments."""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def transformers_serve(environment, tiny, kit, tmp_path_factory) -> Iterator[str]:
    """The address of `transformers serve`; a model's name is its folder."""
    programs, folder = environment("transformers"), tmp_path_factory.mktemp("transformers")
    log, port = folder / "log", kit.free_port()
    (folder / "hub").mkdir()  # without this folder /v1/models answers 500
    command = [
        "nice",
        "-n5",
        programs / "transformers",
        "serve",
        "--device",
        "cpu",
        "--host",
        "127.0.0.1",
        "--port",
        f"{port}",
    ]
    with kit.running(command, log, {"HF_HOME": str(folder), "HF_HUB_CACHE": str(folder / "hub")}) as process:
        kit.wait_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def vllm(environment, tiny, kit, tmp_path_factory) -> Iterator[Callable[[str], str]]:
    """The address of vLLM on the CPU with a vocabulary; the model is named tiny-KIND."""
    programs, folder = environment("vllm"), tmp_path_factory.mktemp("vllm")
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CACHE_ROOT": str(folder)}
    started: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def address(kind: str) -> str:
            if kind not in started:
                log, port = folder / f"log-{kind}", kit.free_port()
                command = vllm_command(programs, tiny(kind), kind, port)
                process = stack.enter_context(kit.running(command, log, env))
                kit.wait_ready(f"http://127.0.0.1:{port}/health", process, log, 600)
                started[kind] = f"http://127.0.0.1:{port}"
            return started[kind]

        yield address


@pytest.fixture(scope="session")
def vllm_under(environment, tiny, kit, tmp_path_factory) -> Iterator[Callable[[str], str]]:
    """The address of vLLM under a policy, over 64 blocks of 32 tokens: some long answers fit at a time."""
    programs, folder = environment("vllm"), tmp_path_factory.mktemp("vllm-policy")
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CACHE_ROOT": str(folder),
           "PYTHONPATH": str(Path(__file__).resolve().parents[3])}  # fmt: skip
    with contextlib.ExitStack() as stack:

        def address(policy: str) -> str:
            log, port = folder / policy.replace(":", "-"), kit.free_port()
            command = [
                *vllm_command(programs, tiny("ascii"), "ascii", port), "--block-size", "32",
                "--num-gpu-blocks-override", "65", "--max-num-batched-tokens", "2048",
                "--no-async-scheduling", "--no-enable-prefix-caching",
                "--scheduler-cls", "backends.vllm.scheduler.PolicyScheduler",
                "--additional-config", json.dumps({"bench_policy": policy}),
            ]  # fmt: skip
            process = stack.enter_context(kit.running(command, log, env))
            kit.wait_ready(f"http://127.0.0.1:{port}/health", process, log, 600)
            return f"http://127.0.0.1:{port}"

        yield address


def vllm_command(programs: Path, model: Path, kind: str, port: int) -> list[str | Path]:
    """As a module, because the `vllm` program of this wheel asks for a package of another name."""
    return [
        "nice", "-n5", programs / "python", "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", f"tiny-{kind}", "--host", "127.0.0.1", "--port", f"{port}", "--max-model-len", "2048",
        "--max-num-seqs", "8", "--dtype", "float32", "--enforce-eager",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def litellm_proxy(environment, llama_cpp, kit, tmp_path_factory) -> Iterator[tuple[str, str]]:
    """Address and key of litellm's proxy, with llama.cpp behind it under the name tiny-bytes."""
    programs, folder = environment("litellm"), tmp_path_factory.mktemp("litellm")
    log, port = folder / "log", kit.free_port()
    (folder / "config.yaml").write_text(
        "model_list:\n- model_name: tiny-bytes\n  litellm_params:\n    model: openai/tiny-bytes\n"
        f"    api_base: {llama_cpp('bytes')}/v1\n    api_key: none\nlitellm_settings:\n  telemetry: false\n"
    )
    command = [
        "nice",
        "-n5",
        programs / "litellm",
        "--config",
        folder / "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        f"{port}",
    ]
    key = f"sk-{secrets.token_hex(32)}"  # it does not start without one
    with kit.running(command, log, {"LITELLM_MASTER_KEY": key}) as process:
        kit.wait_ready(f"http://127.0.0.1:{port}/health/liveliness", process, log)
        yield f"http://127.0.0.1:{port}", key
