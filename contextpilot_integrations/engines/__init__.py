"""What is known of inference engines."""

from contextpilot_integrations.engines.usage import Usage, UsageStream, read_usage

__all__ = ["Usage", "UsageStream", "read_usage"]
