//! Environments as launchers set them (what concerns joining), and what is read from them. Those of Open MPI 4, MPICH, and Slurm
//! without special steps were taken from running jobs, the others from the launchers' documentation.

use crate::environment::{Origin, origin};
use crate::launchers::{Claim, Launcher};
use rankwise_core::{Error, ErrorKind, Result};

type Row = &'static [(&'static str, &'static str)];

/// `torchrun --standalone --nproc-per-node 4`, worker 2.
const TORCHRUN: Row = &[
    ("LOCAL_RANK", "2"),
    ("RANK", "2"),
    ("GROUP_RANK", "0"),
    ("ROLE_RANK", "2"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("WORLD_SIZE", "4"),
    ("GROUP_WORLD_SIZE", "1"),
    ("MASTER_ADDR", "localhost"),
    ("MASTER_PORT", "41017"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
    ("TORCHELASTIC_MAX_RESTARTS", "0"),
    ("TORCHELASTIC_RUN_ID", "0ba2c1f6-9d06-4f5c-b2b2-7b9c0d0c0d4e"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
];

/// `mpirun -n 2`, rank 1 (Open MPI 4.1.4).
const OPEN_MPI_4: Row = &[
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_NODE_RANK", "1"),
    ("PMIX_NAMESPACE", "1626013697"),
    ("PMIX_RANK", "1"),
    ("PMIX_ID", "1626013697.1"),
];

/// `mpirun -n 2`, rank 0 (Open MPI 5).
const OPEN_MPI_5: Row = &[
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("PMIX_NAMESPACE", "prterun-node1-2181@1"),
    ("PMIX_RANK", "0"),
];

/// `mpiexec -n 2`, rank 1 (MPICH 4.0.2, Hydra).
const MPICH: Row = &[
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "2"),
    ("PMI_FD", "8"),
    ("MPI_LOCALNRANKS", "2"),
    ("MPI_LOCALRANKID", "1"),
    ("HYDI_CONTROL_FD", "7"),
];

/// `srun -n 4` on one node, task 3, with --mpi=none (Slurm 22.05).
const SRUN: Row = &[
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_PROCID", "3"),
    ("SLURM_LOCALID", "3"),
    ("SLURM_NODEID", "0"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_NUM_NODES", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "4"),
    ("SLURM_TASKS_PER_NODE", "8(x2)"),
];

/// The same with --mpi=pmi2, which says nothing about the place on the host.
const SRUN_PMI2: Row = &[
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_PROCID", "3"),
    ("SLURM_LOCALID", "3"),
    ("SLURM_NODEID", "0"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_TASKS_PER_NODE", "4"),
    ("PMI_RANK", "3"),
    ("PMI_SIZE", "4"),
    ("PMI_JOBID", "4711.2"),
    ("PMI_FD", "19"),
];

/// The script of `sbatch -n 8`: no task, whatever the variables say.
const SBATCH: Row =
    &[("SLURM_JOB_ID", "4711"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0"), ("SLURM_TASKS_PER_NODE", "8")];

/// The shell of `salloc -n 8` with interactive steps.
const SALLOC: Row = &[
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "4294967290"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_PROCID", "0"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_STEP_TASKS_PER_NODE", "1"),
];

/// An interactive pod of a training operator: sizes of one, and no rank.
const LONELY_POD: Row = &[("WORLD_SIZE", "1"), ("MASTER_ADDR", "pod-0"), ("MASTER_PORT", "23456")];

fn read(rows: &[Row]) -> Result<Origin> {
    let pairs = rows.iter().flat_map(|row| row.iter()).map(|(name, value)| (name.to_string(), value.to_string()));
    origin(&pairs.collect(), |fd| (fd == 8).then(|| "1234 started at 99".into()))
}

fn met(launcher: Launcher, rank: usize, size: usize, key: &str) -> Origin {
    Origin::Met { claim: Claim { launcher, rank, size, local_rank: rank, local_size: size }, key: key.into() }
}

fn refused(rows: &[Row]) -> Error {
    read(rows).map(|origin| panic!("{rows:?} was read as {origin:?}")).unwrap_err()
}

#[test]
fn every_launcher_is_read() {
    use Launcher::*;
    const NAMED: Row = &[("RANKWISE_JOB_ID", "train 7")];
    const TORCH_KEY: &str = "TORCHELASTIC_RUN_ID=0ba2c1f6-9d06-4f5c-b2b2-7b9c0d0c0d4e MASTER_PORT=41017";
    const STEP: &str = "SLURM_JOB_ID.SLURM_STEP_ID=4711.2";
    for (rows, expected) in [
        (&[TORCHRUN][..], met(Torchrun, 2, 4, TORCH_KEY)),
        (&[OPEN_MPI_4], met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697")),
        (&[OPEN_MPI_5], met(OpenMpi, 0, 2, "PMIX_NAMESPACE=prterun-node1-2181@1")),
        (&[MPICH], met(Pmi, 1, 2, "PMI server 1234 started at 99")),
        (&[SRUN], met(Slurm, 3, 4, STEP)),
        (&[SRUN_PMI2], met(Slurm, 3, 4, STEP)),
        (&[SBATCH], Origin::Alone { source: "alone" }),
        (&[SALLOC], Origin::Alone { source: "alone" }),
        (&[LONELY_POD], Origin::Alone { source: Torchrun.source() }),
        // A name that the user gives counts for more than what the launcher says.
        (&[TORCHRUN, NAMED], met(Torchrun, 2, 4, "RANKWISE_JOB_ID=train 7")),
        (&[OPEN_MPI_4, NAMED], met(OpenMpi, 1, 2, "RANKWISE_JOB_ID=train 7")),
        (&[MPICH, NAMED], met(Pmi, 1, 2, "RANKWISE_JOB_ID=train 7")),
        // Launchers inside launchers: the first complete set in the order of the table, with its own key.
        (&[SRUN, TORCHRUN], met(Torchrun, 2, 4, TORCH_KEY)),
        (&[SRUN, OPEN_MPI_4], met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697")),
        (&[SBATCH, OPEN_MPI_4], met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697")),
        (&[SALLOC, MPICH], met(Pmi, 1, 2, "PMI server 1234 started at 99")),
        // A pod's lone size does not make a world of one of each rank that is started there.
        (&[LONELY_POD, OPEN_MPI_4], met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697")),
        (&[LONELY_POD, SRUN], met(Slurm, 3, 4, STEP)),
        // A half set is nobody's concern when another is complete.
        (&[&[("RANK", "1")], OPEN_MPI_4], met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697")),
        (&[&[("RANKWISE_RANK", "1")], OPEN_MPI_4], met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697")),
        (
            &[OPEN_MPI_4, &[("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "x")]],
            met(OpenMpi, 1, 2, "PMIX_NAMESPACE=1626013697"),
        ),
    ] {
        assert_eq!(read(rows).unwrap(), expected, "{rows:?}");
    }
}

#[test]
fn what_is_missing_is_named() {
    for (row, named) in [
        (&[("RANK", "1")][..], "RANK is set but WORLD_SIZE is not"),
        (&[("WORLD_SIZE", "2")], "WORLD_SIZE is set but RANK is not"),
        (&[("LOCAL_RANK", "1")], "LOCAL_RANK is set but RANK is not"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2")], "RANK is set but LOCAL_RANK is not"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")], "RANK is set but LOCAL_WORLD_SIZE is not"),
        (&[("OMPI_COMM_WORLD_SIZE", "2")], "OMPI_COMM_WORLD_SIZE is set but OMPI_COMM_WORLD_RANK is not"),
        (&[("PMI_SIZE", "2"), ("PMI_RANK", "1")], "PMI_RANK is set but MPI_LOCALRANKID is not"),
        (&[("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "3")], "SLURM_NTASKS is set but SLURM_PROCID is not"),
        (&[("RANKWISE_RANK", "1")], "RANKWISE_RANK is set but RANKWISE_WORLD_SIZE is not"),
        (&[("WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_SIZE", "2")], "OMPI_COMM_WORLD_RANK is not"),
    ] {
        let error = refused(&[row]);
        assert_eq!(error.kind(), &ErrorKind::Config, "{row:?}");
        assert!(error.message().contains(named), "{row:?}: {error}");
    }
}

#[test]
fn what_has_no_sense_is_named() {
    for (rows, named) in [
        (&[TORCHRUN, &[("RANK", "4")]][..], "RANK is 4"),
        (&[TORCHRUN, &[("WORLD_SIZE", "two")]], "WORLD_SIZE is `two`"),
        (&[TORCHRUN, &[("LOCAL_WORLD_SIZE", "9")]], "LOCAL_WORLD_SIZE says 9"),
        (&[TORCHRUN, &[("LOCAL_RANK", "-1")]], "LOCAL_RANK is `-1`"),
        (&[OPEN_MPI_4, &[("OMPI_COMM_WORLD_LOCAL_RANK", "2")]], "OMPI_COMM_WORLD_LOCAL_RANK is 2"),
        (&[SRUN, &[("SLURM_STEP_TASKS_PER_NODE", "four")]], "SLURM_STEP_TASKS_PER_NODE is `four`"),
        (&[SRUN, &[("SLURM_NODEID", "1")]], "SLURM_STEP_TASKS_PER_NODE is `4`"),
        // Nothing says which job it is.
        (&[TORCHRUN, &[("MASTER_PORT", "")]], "RANKWISE_JOB_ID"),
        (&[OPEN_MPI_4, &[("PMIX_NAMESPACE", " ")]], "RANKWISE_JOB_ID"),
        (&[MPICH, &[("PMI_FD", "9")]], "mpiexec -genv RANKWISE_JOB_ID"),
        (&[SRUN, &[("SLURM_JOB_ID", "")]], "srun --export=ALL,RANKWISE_JOB_ID"),
    ] {
        let error = refused(rows);
        assert_eq!(error.kind(), &ErrorKind::Config, "{rows:?}");
        assert!(error.message().contains(named), "{rows:?}: {error}");
    }
}

#[test]
fn tasks_per_node_are_counted() {
    for (list, node, here) in [("4", "0", 4), ("4(x2),3", "1", 4), ("4(x2),3", "2", 3), ("1,2(x3)", "3", 2)] {
        let map = [("SLURM_NODEID".to_string(), node.to_string())].into();
        assert_eq!(super::tasks_on_node(("X", list), &map).unwrap(), here, "{list} on {node}");
    }
    for (list, node) in [("4", "1"), ("", "0"), ("4(x", "0"), ("4(xx)", "0"), ("4(x2),3", "3"), ("-1", "0")] {
        let map = [("SLURM_NODEID".to_string(), node.to_string())].into();
        assert!(super::tasks_on_node(("X", list), &map).is_err(), "{list} on {node}");
    }
}

#[test]
fn ranks_on_several_hosts_meet_at_rank_0() {
    const TWO_NODES: Row = &[("SLURM_NTASKS", "8"), ("SLURM_STEP_TASKS_PER_NODE", "4(x2)")];
    const PLACE: Row =
        &[("MASTER_ADDR", "node1"), ("RANKWISE_PORT", "7000"), ("RANKWISE_TOKEN_FILE", "/run/secret/token")];
    let Origin::Spread(spread) = read(&[SRUN, TWO_NODES, PLACE]).unwrap() else { panic!() };
    let standing = spread.standing;
    assert_eq!((standing.rank, standing.size, standing.local_rank, standing.local_size), (3, 8, 3, 4));
    assert_eq!((&spread.point.at.host[..], spread.point.at.port), ("node1", 7000));
    assert_eq!(spread.key, "SLURM_JOB_ID.SLURM_STEP_ID=4711.2");
    assert!(refused(&[SRUN, TWO_NODES]).message().contains("RANKWISE_ADDRESS"));
    // What torchrun's agent serves is not ours.
    let error = refused(&[TORCHRUN, &[("WORLD_SIZE", "8")]]);
    assert!(error.message().contains("RANKWISE_PORT"), "{error}");
    // A PMI server is one of this host only.
    let error = refused(&[MPICH, &[("PMI_SIZE", "4")], PLACE]);
    assert!(error.message().contains("RANKWISE_JOB_ID"), "{error}");
}
