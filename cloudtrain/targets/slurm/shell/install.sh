#!/bin/bash -l
# Builds the environment @folder@ on the login node.

@setup@@exports@
[ -n "$UV_CACHE_DIR" ] || export UV_CACHE_DIR=@cache@
code=$(mktemp -d @folder@.code-XXXXXX) || exit 1
trap 'rm -rf "$code"' EXIT
tar -xzf @bundle@ -C "$code" && cd "$code" || exit 1
if [ ! -e cloudtrain/runtime/install.py ]; then
  echo "error: the code was sent by an older cloudtrain; submit the job from its source folder"
  exit 1
fi
PYTHONPATH="$code" @python@ -m cloudtrain.runtime.install @file@ --into @folder@ || exit 1
# A package that is installed as `-e` is read from the code.
shopt -s nullglob
if grep -qsF "$code" @folder@/lib/python*/site-packages/{*.pth,__editable__*} </dev/null; then trap - EXIT; fi
missing=$(PYTHONPATH= @folder@/bin/python -c @question@ @modules@ 2>/dev/null </dev/null | sed -n 's/^@missing //p' | head -n 1)
[ -z "$missing" ] || { echo "error: the new environment cannot import ${missing/ / (})"; exit 1; }
