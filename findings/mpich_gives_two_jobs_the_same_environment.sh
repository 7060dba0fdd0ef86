#!/usr/bin/env bash
# mpich 5.0.2 from PyPI, Python 3.11, Linux, 2026-11-30.
#
# mpiexec of MPICH (Hydra) tells each process its rank and the size of the job, but nothing that differs between two jobs on one
# machine, except for PMI_FD, a number of a file descriptor that differs between the processes of a job as well. A program that
# derives the port of a rendezvous from its environment takes the same port in both jobs, and ranks of one job may meet ranks of
# the other. Open MPI has PMIX_NAMESPACE, Intel MPI I_MPI_HYDRA_UUID. What tells the jobs apart is the parent: one hydra_pmi_proxy
# starts all processes of a job on a machine.
#
# Seen:
#   names: GFORTRAN_UNBUFFERED_PRECONNECTED HYDI_CONTROL_FD MPI_LOCALNRANKS MPI_LOCALRANKID PMI_FD PMI_HOSTNAME PMI_RANK PMI_SIZE
#   differ between two jobs that run at the same time: none but PMI_FD
#   parents named hydra_pmi_proxy: 2
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/task.py" <<'PYTHON'
import json
import os
import sys
import time
from pathlib import Path

folder, job = Path(sys.argv[1]), sys.argv[2]
before = set(json.loads((folder / "before").read_text()))
added = {name: value for name, value in os.environ.items() if name not in before}
parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
(folder / f"{job}-{os.environ['PMI_RANK']}").write_text(json.dumps([added, f"{os.getppid()} {parent}"]))
while len(list(folder.glob("*-[01]"))) < 4:
    time.sleep(0.05)
PYTHON
cat >"$directory/compare.py" <<'PYTHON'
import json
import sys
from pathlib import Path

folder = Path(sys.argv[1])
tasks = {file.name: json.loads(file.read_text()) for file in folder.glob("*-[01]")}
print("names:", *sorted(set().union(*(added for added, _ in tasks.values()))))
differing = {
    name for rank in "01" for name, value in tasks[f"a-{rank}"][0].items() if tasks[f"b-{rank}"][0].get(name) != value
} - {"PMI_FD"}
print("differ between two jobs that run at the same time:", *(sorted(differing) or ["none but PMI_FD"]))
print("parents named hydra_pmi_proxy:", len({parent for _, parent in tasks.values() if parent.endswith(" hydra_pmi_proxy")}))
PYTHON

python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2
python3 -c 'import json, os; print(json.dumps(sorted(os.environ)))' >"$directory/before"
for job in a b; do
  "$directory/venv/bin/mpiexec" -n 2 python3 "$directory/task.py" "$directory" "$job" &
done
wait
python3 "$directory/compare.py" "$directory" | tee "$directory/seen"
diff "$directory/seen" - <<'EXPECTED'
names: GFORTRAN_UNBUFFERED_PRECONNECTED HYDI_CONTROL_FD MPI_LOCALNRANKS MPI_LOCALRANKID PMI_FD PMI_HOSTNAME PMI_RANK PMI_SIZE
differ between two jobs that run at the same time: none but PMI_FD
parents named hydra_pmi_proxy: 2
EXPECTED
