"""What is known of inference engines."""

from contextpilot_integrations.engines.detection import Server, identify
from contextpilot_integrations.engines.engine import LLAMA_CPP, PLAIN, SGLANG, VLLM, Engine
from contextpilot_integrations.engines.usage import Usage, UsageStream, read_usage

__all__ = [
    "LLAMA_CPP",
    "PLAIN",
    "SGLANG",
    "VLLM",
    "Engine",
    "Server",
    "Usage",
    "UsageStream",
    "identify",
    "read_usage",
]
