"""``python -m contextpilot_integrations``: the ``contextpilot`` command."""

from contextpilot_integrations.cli import app

app(prog_name="contextpilot")
