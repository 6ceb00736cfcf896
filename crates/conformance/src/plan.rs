//! What a job of the suite is told, and what its ranks tell back: JSON in one environment variable and on stdout.

use crate::expectations::{CallLog, Deviation, Promise};
use crate::sequences::{Form, PlayedPart, TablePart};
use serde::{Deserialize, Serialize};
use std::io::Write;

/// The environment variable that carries a job's plan to its ranks.
pub(crate) const PLAN_VARIABLE: &str = "RANKWISE_CONFORMANCE_PLAN";
const MARK: &str = "@rankwise-conformance ";

/// How the ranks of a job are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Threads of one process.
    Threads,
    /// A process each.
    Processes,
    /// Started by somebody else: the suite runs inside their job.
    Outer,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 3] = [Mode::Threads, Mode::Processes, Mode::Outer];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Threads => "threads",
            Mode::Processes => "processes",
            Mode::Outer => "outer",
        }
    }
}

/// What the ranks of a job do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Run these cases in order.
    Cases(Vec<String>),
    /// Play their part in a drill.
    Drill(DrillPart),
    /// Play a sequence.
    Script(ScriptPart),
    /// Say what the capability table holds.
    Describe,
    /// Launch the ranks of another plan and wait for them: a launcher that can be killed.
    Launcher(Box<Plan>),
}

/// One sequence, as its ranks see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScriptPart {
    /// Where the text is.
    pub path: String,
    /// How to make the calls and record their results, instead of judging them.
    pub form: Option<Form>,
    /// Deadline of a call, in seconds.
    pub call_seconds: u64,
}

/// One drill, as its ranks see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DrillPart {
    /// What happens.
    pub scenario: String,
    /// Kind of the operation in which it happens.
    pub kind: String,
    /// Global rank to which it happens.
    pub victim: usize,
    /// Deadline of the calls, in milliseconds.
    pub timeout_ms: u64,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// What the ranks do.
    pub role: Role,
    /// The backend's name.
    pub backend: String,
    /// The mutation to put between the backend and the suite, if any.
    pub mutant: Option<String>,
    /// How the ranks are placed.
    pub mode: Mode,
    /// Number of ranks.
    pub ranks: usize,
    /// Every world size of the run, so that samples can be spread over them.
    pub worlds: Vec<usize>,
    /// Every mode of the run, likewise.
    pub modes: Vec<Mode>,
    /// Seed of the run.
    pub seed: u64,
    /// Whether to run whole products instead of samples.
    pub full: bool,
    /// Seconds that a case may take, instead of its own.
    pub case_seconds: Option<u64>,
    /// What the backend has promised.
    pub promise: Option<Promise>,
    /// Deviations of calls that apply in this job, by position in the list of the backend.
    pub deviations: Vec<(usize, Deviation)>,
}

/// How a case ended on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ending {
    /// Everything as it must be.
    Pass,
    /// A call did something wrong, and what.
    Wrong(String),
    /// The case ended with an error or a panic, and which.
    Fail(String),
    /// The capability table does not offer it, and the backend refused it properly.
    Unsupported(String),
}

/// One line from a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// The rank enters a case.
    Begin {
        /// Global rank.
        rank: usize,
        /// Id of the case.
        case: String,
    },
    /// The rank has finished a case.
    End {
        /// Global rank.
        rank: usize,
        /// Id of the case.
        case: String,
        /// How.
        ending: Ending,
        /// Milliseconds it took.
        millis: u64,
    },
    /// The case made calls that are known to deviate; before its `End`.
    Calls {
        /// Global rank.
        rank: usize,
        /// Id of the case.
        case: String,
        /// Which.
        calls: CallLog,
    },
    /// The rank has been in a case for longer than the case may take.
    Stuck {
        /// Global rank.
        rank: usize,
        /// Id of the case.
        case: String,
        /// What the rank called last.
        last_call: String,
    },
    /// The rank can't go on with the job.
    Broken {
        /// Global rank.
        rank: usize,
        /// Why.
        why: String,
    },
    /// The rank has run everything.
    Done {
        /// Global rank.
        rank: usize,
    },
    /// Something of a sequence has been played.
    Played {
        /// Global rank.
        rank: usize,
        /// What.
        part: PlayedPart,
    },
    /// What the capability table holds.
    Table(TablePart),
    /// Something happened in a drill.
    Event {
        /// Global rank.
        rank: usize,
        /// What.
        what: String,
        /// Nanoseconds of the monotonic clock, which is the same for all processes of the host.
        at: u64,
        /// Kind of the error, if one is reported.
        kind: Option<String>,
        /// Global ranks the error names.
        peers: Vec<usize>,
        /// More, for people.
        detail: String,
    },
}

impl Record {
    /// Prints the record as one whole line, whatever stands on the current one.
    pub(crate) fn emit(&self) {
        let json = serde_json::to_string(self).unwrap_or_default();
        let mut out = std::io::stdout().lock();
        // A closed pipe means that nobody is left to report to.
        let _ = out.write_all(format!("\n{MARK}{json}\n").as_bytes()).and_then(|()| out.flush());
    }

    /// The record in a line of output, if it is one.
    pub(crate) fn parse(line: &str) -> Option<Record> {
        serde_json::from_str(line.strip_prefix(MARK)?.trim_end()).ok()
    }
}

/// Nanoseconds of the monotonic clock, comparable between the processes of a host.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
