"""The sbatch script on a real Slurm: one controller and two node daemons on this machine, in a folder of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gaian_hpc.data.synthetic import write_city
from tests.launch.launchers import BIN

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldPort=16917
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
KillWait=5
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=3
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17101 CPUs=8 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17102 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Return a function that runs a command of a Slurm with two nodes."""
    missing = [p for p in PROGRAMS if shutil.which(p) is None and not Path("/usr/sbin", p).exists()]
    if missing or os.getuid() != 0:
        pytest.skip(f"needs root and Slurm, without {', '.join(missing) or 'root'}: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    daemons = [["munged", "-F", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
                f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"],
               ["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
    running = []

    def run(*words, check=True, cwd=None):
        done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, check=False,
                              cwd=cwd)
        if check and done.returncode:
            pytest.fail(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    try:
        for words in daemons:
            running.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))
            wait_for(lambda: (folder / "munge.socket").exists(), 20, "munge")
        wait_for(lambda: run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() == "2", 60, "two idle nodes",
                 folder)
        run.environment = environment
        yield run
    finally:
        run("scancel", "--full", "-u", "root", check=False)
        time.sleep(1)
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(condition, seconds: float, what: str, folder: Path | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "".join(f"\n{p.name}: {p.read_text()[-600:]}" for p in folder.glob("*.log")) if folder else ""
            pytest.fail(f"no {what} after {seconds} s{logs}")
        time.sleep(0.3)


@pytest.fixture(scope="module")
def site(tmp_path_factory, repository):
    """Return a checkout as a user has it: the slurm folder, an environment, a scene."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(repository / "slurm", folder / "slurm")
    script = folder / "slurm/env.sh"
    text = script.read_text()
    activate = re.search(r"^source .*$", text, re.M).group()
    script.write_text(text.replace(activate, f'PATH="{BIN}:$PATH"'))
    write_city(folder / "scene", n_views=10, width=64, height=48, n_points=600, spacing=4.0)
    return folder


def state_of(slurm, job: str) -> str:
    found = re.search(r"JobState=(\w+)", slurm("scontrol", "show", "job", job, check=False))
    return found[1] if found else "GONE"


def last_step(metrics: Path) -> int:
    return json.loads(metrics.read_text().splitlines()[-1])["step"]


def submit(slurm, site, run, launch, *words, options=()):
    return slurm("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1",
                 f"--export=ALL,GAIAN_LAUNCH={launch}", f"--output={run}.log", *options, "slurm/train.sbatch", "scene",
                 run, "--log_every", "1", "--patch_size", "16", *words, cwd=site).strip()


def start(slurm, site, run, launch, *words, options=()):
    """Submit a job and wait until its ranks train; again where Slurm's PMI-2 server garbled what MPICH told it."""
    for _ in range(4):
        job, log = submit(slurm, site, run, launch, *words, options=options), site / f"{run}.log"
        wait_for(lambda log=log, job=job: (log.exists() and "training and" in log.read_text())
                 or state_of(slurm, job) in ("FAILED", "GONE"), 120, "start of the job")
        if "training and" in log.read_text():
            return job
        assert "srun" in launch and ("mpi/pmi2" in log.read_text() or "Killed" in log.read_text()), log.read_text()
        log.unlink()
    pytest.fail(f"{launch} did not start a job in four tries")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launch", ["srun --mpi=pmi2", "mpirun"])
def test_a_job_on_two_nodes_gives_the_bits_of_one_rank(slurm, site, launch):
    run, alone = launch.split()[0], "alone"
    job = start(slurm, site, run, launch, "--steps", "12")
    wait_for(lambda: state_of(slurm, job) not in ("PENDING", "RUNNING", "COMPLETING"), 240, "end of the job")
    log = (site / f"{run}.log").read_text()
    assert state_of(slurm, job) == "COMPLETED", log
    assert "on 4 ranks of" in log and "step 12:" in log
    gaian = [sys.executable, "-m", "gaian_hpc.cli"]
    if not (site / alone).exists():
        subprocess.run([*gaian, "train", "scene", "-o", alone, "--steps", "12", "--patch_size", "16", "--threads", "1"],
                       cwd=site, check=True, capture_output=True)
    digests = {subprocess.run([*gaian, "inspect", r, "--digest"], cwd=site, check=True, capture_output=True).stdout
               for r in (run, alone)}
    assert len(digests) == 1
    assert len(list((site / run / "checkpoints").glob("*/shard_*.h5"))) == 4


@pytest.mark.timeout(900)
def test_before_the_time_limit_all_ranks_checkpoint_and_the_job_queues_again_and_resumes(slurm, site):
    # Slurm looks at limits twice a minute and may be a minute early: the signal comes 20 to 80 s after the start.
    limit = ("--time=2", "--signal=B:USR1@40")
    jobs = {name: start(slurm, site, f"{name}-limit", launch, "--steps", "1000000", "--checkpoint.every", "1000000",
                        options=limit) for name, launch in (("srun", "srun --mpi=pmi2"), ("mpirun", "mpirun"))}
    for name, job in jobs.items():
        log, metrics = site / f"{name}-limit.log", site / f"{name}-limit" / "metrics.jsonl"
        wait_for(lambda log=log: log.exists() and "queues again" in log.read_text(), 240, "signal before the limit")
        first = int(re.search(r"stopped at step (\d+) of", log.read_text())[1])
        assert first > 1 and "checkpoint written" in log.read_text()
        # Slurm lets a job that queued itself again wait for two minutes.
        resumed = f"resumed at step {first}"
        wait_for(lambda log=log, text=resumed: text in log.read_text(), 300, "second life of the job")
        wait_for(lambda m=metrics, first=first: last_step(m) > first, 60, "further steps")
        slurm("scancel", "--full", job)
        wait_for(lambda job=job: state_of(slurm, job) not in ("PENDING", "RUNNING", "COMPLETING"), 60, "end of the job")
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if '"loss"' in line]
        assert steps == list(range(1, len(steps) + 1))  # none twice and none left out


def test_a_step_without_an_mpi_of_its_own_is_refused(slurm, site):
    words = ["srun", "-n", "2", "--mpi=none", f"--chdir={site}", str(BIN / "gaian"), "train", "scene", "-o", "nothing"]
    done = subprocess.run([*words, "--steps", "2"], env=slurm.environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "the launcher started 2 ranks, but MPI" in done.stderr
    assert not (site / "nothing").exists()
