//! Which launcher starts the ranks of a backend in `bench` and `conformance`: ours, or that of the MPI the backend runs on.
//!
//! An MPI's ranks are started by the `mpirun` of that same MPI. It is looked for beside the library, then in `PATH`, and is
//! taken only when it says that it belongs to the library.

use clap::Args;
use rankwise_world::launch::Launch;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Names the launcher, with arguments, instead of the one that is found.
pub(crate) const VARIABLE: &str = "RANKWISE_MPIRUN";
/// Hidden subcommand that becomes a rank under an MPI's launcher.
pub(crate) const RANK_COMMAND: &str = "__mpi-rank";

/// Backends whose ranks an MPI starts.
const BACKENDS: [&str; 2] = ["mpi", "mpi-abi"];

/// What our own launcher tells the process it starts, here the `mpirun`, and what would make each rank a world of one. The id of
/// the job stays: it is the same for all ranks, and whoever carries it is ended with the job.
const LAUNCHED: [&str; 8] = [
    "RANKWISE_RANK",
    "RANKWISE_WORLD_SIZE",
    "RANKWISE_LOCAL_RANK",
    "RANKWISE_LOCAL_SIZE",
    "RANKWISE_CONTROL_FD",
    "RANKWISE_LIFE_FD",
    "RANKWISE_PROTOCOL",
    "RANKWISE_CPUS",
];
/// Where launchers say which of its host's ranks a process is.
const LOCAL_RANK: [&str; 6] =
    ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID", "PMIX_RANK", "PMI_RANK"];

/// Implementations whose launchers have options of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
    Intel,
}

impl Family {
    /// From what a library or a launcher says of itself.
    fn of(version: &str) -> Option<Family> {
        let says = |words: &[&str]| words.iter().any(|word| version.contains(word));
        match () {
            () if says(&["Open MPI", "OpenRTE", "PRRTE", "prterun"]) => Some(Family::OpenMpi),
            () if says(&["Intel(R) MPI"]) => Some(Family::Intel),
            () if says(&["MPICH", "HYDRA", "Hydra"]) => Some(Family::Mpich),
            () => None,
        }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["mpirun.openmpi", "mpirun", "mpiexec"],
            Family::Mpich => &["mpiexec.mpich", "mpirun.mpich", "mpiexec.hydra", "mpiexec", "mpirun"],
            Family::Intel => &["mpiexec.hydra", "mpiexec", "mpirun"],
        }
    }
}

/// An MPI's launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mpirun {
    /// Program and the user's arguments.
    words: Vec<String>,
    family: Option<Family>,
}

impl Mpirun {
    /// The one for a backend; `None` when our own launcher starts its ranks. The message says what to do.
    pub(crate) fn of(backend: &str) -> Result<Option<Mpirun>, String> {
        if !BACKENDS.contains(&backend) {
            return Ok(None);
        }
        let given = std::env::var(VARIABLE).ok();
        let version = version_of_library(backend)?;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        choose(given.as_deref(), &version, &beside(&maps), &says).map(Some)
    }

    /// The words in front of the program that it starts.
    fn arguments(&self, ranks: u32, cpus: usize) -> Vec<String> {
        let crowded = ranks as usize > cpus;
        let own: &[&str] = match self.family {
            // Slots are cores otherwise, half of the processors where cores have two threads.
            Some(Family::OpenMpi) if crowded => &["--bind-to", "none", "--oversubscribe"],
            Some(Family::OpenMpi) => &["--bind-to", "none", "--use-hwthread-cpus"],
            Some(Family::Mpich) => &["-bind-to", "none"],
            Some(Family::Intel) | None => &[],
        };
        let words = self.words[1..].iter().cloned().chain(own.iter().map(ToString::to_string));
        words.chain(["-n".to_string(), ranks.to_string()]).collect()
    }

    /// Starts this program with these arguments as so many ranks; with `cores` each binds itself to a CPU, in turn.
    pub(crate) fn launch(&self, ranks: u32, program: &Path, cores: bool, arguments: &[String]) -> Launch {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let launch = Launch::new(1, &self.words[0]).args(self.arguments(ranks, cpus)).arg(program).arg(RANK_COMMAND);
        let launch = launch.args(cores.then_some("--cores")).arg("--").args(arguments);
        match self.family {
            Some(Family::Intel) => launch.env("I_MPI_PIN", "0"),
            _ => launch,
        }
    }

    /// The program's name, for people.
    pub(crate) fn name(&self) -> &str {
        self.words[0].rsplit('/').next().unwrap_or_default()
    }
}

/// Finds the launcher of an MPI that says `version`. `given` is the user's command, `beside` are directories next to the library;
/// `says` is what a program prints about itself, nothing when there is no such program.
fn choose(
    given: Option<&str>,
    version: &str,
    beside: &[PathBuf],
    says: &dyn Fn(&str) -> Option<String>,
) -> Result<Mpirun, String> {
    let words: Vec<String> = given.unwrap_or_default().split_whitespace().map(String::from).collect();
    if let Some(program) = words.first() {
        let Some(said) = says(program) else {
            return Err(format!(
                "{VARIABLE} names {program}, which cannot be run; name the mpirun that belongs to {version}"
            ));
        };
        // The user's arguments say how ranks are placed.
        let family = if words.len() == 1 { Family::of(&said) } else { None };
        return Ok(Mpirun { words, family });
    }
    let Some(family) = Family::of(version) else {
        return Err(format!("the launcher of {version} is not known; set {VARIABLE} to it, with its arguments"));
    };
    let near =
        beside.iter().flat_map(|dir| family.names().iter().map(|name| dir.join(name).to_string_lossy().into_owned()));
    let candidates: Vec<String> = near.chain(family.names().iter().map(ToString::to_string)).collect();
    let fits = |program: &&String| says(program).is_some_and(|said| Family::of(&said) == Some(family));
    match candidates.iter().find(fits) {
        Some(program) => Ok(Mpirun { words: vec![program.clone()], family: Some(family) }),
        None => Err(format!(
            "the launcher of {version} was not found (looked for {}); install it, or set {VARIABLE} to it, with its arguments",
            family.names().join(", ")
        )),
    }
}

/// What the library of a backend says of itself.
fn version_of_library(backend: &str) -> Result<String, String> {
    let driver = rankwise::driver(backend).map_err(|error| error.message().to_string())?;
    let report = driver.probe(&rankwise::World::solo()).map_err(|error| error.message().to_string())?;
    let version = report.facts.into_iter().find(|(name, _)| name == "version");
    version.map(|(_, version)| version).ok_or_else(|| format!("the backend {backend} does not say its MPI's version"))
}

/// Where programs of an installation lie whose library this process has loaded: `bin` beside `lib`.
fn beside(maps: &str) -> Vec<PathBuf> {
    let is_mpi = |path: &&Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libmpi.so") || name.starts_with("libmpich.so") || name.starts_with("libmpi_abi.so")
    };
    let libraries = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..]))).filter(is_mpi);
    let bins = libraries.filter_map(|path| path.parent()?.parent()).map(|prefix| prefix.join("bin"));
    let mut distinct: Vec<PathBuf> = bins.collect();
    distinct.dedup();
    distinct
}

/// What `PROGRAM --version` prints.
///
/// Nothing when it does not end in time.
fn says(program: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut asked = command.spawn().ok()?;
    let begun = Instant::now();
    while asked.try_wait().ok()?.is_none() {
        if begun.elapsed() >= PATIENCE {
            let _ = asked.kill();
            let _ = asked.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let found = asked.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&found.stdout).into_owned() + &String::from_utf8_lossy(&found.stderr))
}

/// How long a program may take to say its version.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an MPI's launcher starts, with the arguments of the rank itself.
#[derive(Args)]
pub(crate) struct MpiRank {
    /// Bind this rank to a CPU, in turn
    #[arg(long)]
    cores: bool,
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl MpiRank {
    /// Becomes the rank: what the launcher above the `mpirun` said is forgotten, and the rank binds itself before MPI starts,
    /// as our own launcher binds ranks.
    pub(crate) fn run(self) -> ExitCode {
        eprintln!("rankwise: a rank cannot be started: {}", self.fails());
        ExitCode::FAILURE
    }

    /// Returns only what went wrong.
    fn fails(&self) -> String {
        if self.cores
            && let Err(why) = bind()
        {
            return why;
        }
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => return error.to_string(),
        };
        let mut rank = Command::new(program);
        for name in LAUNCHED {
            rank.env_remove(name);
        }
        rank.args(&self.arguments).exec().to_string()
    }
}

/// Binds this process to the CPU of its local rank, in turn.
fn bind() -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let local = LOCAL_RANK.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    let local = local.ok_or_else(|| format!("none of {} is set; which rank is this?", LOCAL_RANK.join(", ")))?;
    let allowed = sched_getaffinity(None).map_err(|errno| format!("its CPUs cannot be read: {errno}"))?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let Some(cpu) = allowed.get(local % allowed.len().max(1)) else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(*cpu);
    sched_setaffinity(None, &set).map_err(|errno| format!("it cannot be bound to CPU {cpu}: {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: &str = "Open MPI v4.1.4, package: Debian OpenMPI";

    /// A machine with these programs.
    fn machine(programs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        let programs: Vec<(String, String)> =
            programs.iter().map(|(name, said)| (name.to_string(), said.to_string())).collect();
        move |program| programs.iter().find(|(name, _)| name == program).map(|(_, said)| said.clone())
    }

    #[test]
    fn the_launcher_belongs_to_the_library() {
        let both = machine(&[
            ("mpirun", "HYDRA build details:"),
            ("mpiexec.mpich", "HYDRA build details:"),
            ("mpirun.openmpi", "mpirun.openmpi (OpenRTE) 4.1.4"),
            ("/opt/ompi/bin/mpirun", "mpirun (Open MPI) 5.0.11"),
            ("/opt/impi/bin/mpiexec.hydra", "Intel(R) MPI Library for Linux* OS, Version 2021.19.0"),
        ]);
        let chosen = |version: &str, dir: &str| choose(None, version, &[dir.into()], &both).unwrap().words;
        assert_eq!(chosen(OPEN_MPI, "/usr/lib/bin"), ["mpirun.openmpi"]);
        assert_eq!(chosen(OPEN_MPI, "/opt/ompi/bin"), ["/opt/ompi/bin/mpirun"]);
        assert_eq!(chosen("MPICH Version:\t4.0.2", "/opt/ompi/bin"), ["mpiexec.mpich"]);
        assert_eq!(chosen("Intel(R) MPI Library 2021.19", "/opt/impi/bin"), ["/opt/impi/bin/mpiexec.hydra"]);
    }

    #[test]
    fn what_is_not_found_can_be_named() {
        let other = machine(&[("mpirun", "HYDRA build details:"), ("srun", "slurm 23.02")]);
        for (given, version) in
            [(None, OPEN_MPI), (Some(""), OPEN_MPI), (None, "Other MPI 1.0"), (Some("nowhere -x"), OPEN_MPI)]
        {
            let message = choose(given, version, &[], &other).unwrap_err();
            assert!(message.contains(VARIABLE) && message.contains(version), "{message}");
        }
        let named = choose(Some("srun --mpi=pmix"), OPEN_MPI, &[], &other).unwrap();
        assert_eq!(named.words, ["srun", "--mpi=pmix"]);
        assert_eq!(named.arguments(3, 2), ["--mpi=pmix", "-n", "3"]);
    }

    #[test]
    fn launchers_bind_nothing_and_take_more_ranks_than_processors() {
        let arguments =
            |family, ranks| Mpirun { words: vec!["mpirun".into()], family: Some(family) }.arguments(ranks, 2).join(" ");
        assert_eq!(arguments(Family::OpenMpi, 2), "--bind-to none --use-hwthread-cpus -n 2");
        assert_eq!(arguments(Family::OpenMpi, 3), "--bind-to none --oversubscribe -n 3");
        assert_eq!(arguments(Family::Mpich, 3), "-bind-to none -n 3");
        assert_eq!(arguments(Family::Intel, 3), "-n 3");
    }

    #[test]
    fn an_installation_is_known_by_its_library() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 1  /opt/a b/lib/libmpi.so.40.30.4\n\
                    7f01-7f02 r--p 00000000 08:01 1  /opt/a b/lib/libmpi.so.40.30.4\n\
                    7f02-7f03 r--p 00000000 08:01 1  /opt/c/lib/libmpifort.so.1\n7f03-7f04 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(beside(maps), [PathBuf::from("/opt/a b/bin")]);
    }
}
