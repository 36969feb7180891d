#!/usr/bin/env bash
# The main job: sets Rondo up, then runs YOLOv5s layer workloads on the RTL under each buffer policy.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec .venv/bin/rondo compare "$@"
