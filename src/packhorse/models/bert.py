"""BERT, and what has its shape under other names (MiniLM, BGE, E5); ERNIE is it with one table."""

from __future__ import annotations

from dataclasses import replace

from packhorse.models.names import Names

BERT = Names()

ERNIE = replace(
    BERT,
    extra_table=("embeddings.task_type_embeddings", "use_task_id", "task_type_vocab_size"),
)
