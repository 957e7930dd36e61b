"""Retrievers for LangChain on plain client libraries, each in a module of its own.

`contextpilot_integrations.retrievers.faiss` searches by embeddings, in memory;
`contextpilot_integrations.retrievers.elasticsearch` by BM25, on a server. Both take a whole batch of queries
as one search, so that a `ContextPilotAligner` behind them plans all at once.
"""
