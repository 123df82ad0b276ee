"""Job files: conversion of YAML, TOML and JSON text to a job, with the position of every mistake.

    text --document--> data and positions --overrides--> data --validation--> job, or every problem at once

`parse_job` converts text to a job without reading files. Only `load_job` reads files.
"""

from __future__ import annotations

from cloudtrain.documents.document import Document, Format, Place, Positions, read_document
from cloudtrain.jobfile.files import SUFFIXES, format_of, load_job
from cloudtrain.jobfile.parse import JobFile, parse, parse_job

__all__ = [
    "SUFFIXES",
    "Document",
    "Format",
    "JobFile",
    "Place",
    "Positions",
    "format_of",
    "load_job",
    "parse",
    "parse_job",
    "read_document",
]
