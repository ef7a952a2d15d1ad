//! What a local cluster is made of: the user's choices, and the processes that follow from them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_forms::Fault;
use millrace_runtime::duration;
use millrace_worker::{builtin, file};
use serde::{Deserialize, Serialize};

use crate::folders;

/// The leases of a new local cluster: one server without elections can do with short ones, so that a run that was cut
/// off goes on soon.
const LANE_LEASE: Duration = Duration::from_secs(2);
const WORK_LEASE: Duration = Duration::from_secs(5);
/// How long a run stays in the lane after its end: a cluster that is started for one run soon stops.
const LINGER: Duration = Duration::from_millis(200);

/// How many workers there are where nothing else is said, and how many tasks each of them does at once.
const WORKERS: u32 = 2;
const SLOTS: u32 = 8;

/// The choices, also as command-line arguments.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Folder that holds the cluster's store, logs and credentials
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::data())]
    pub data: PathBuf,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = WORKERS, value_parser = clap::value_parser!(u32).range(1..))]
    pub workers: u32,
    /// Number of tasks that each worker does at the same time
    #[arg(long, value_name = "N", default_value_t = SLOTS, value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: u32,
    /// Number of supervisor processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub supervisors: u32,
    /// Number of critic processes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub critics: u32,
    /// Capability file that the workers serve besides what is built in (see `millrace schema capability`); may be given
    /// several times
    #[arg(long, value_name = "FILE")]
    pub capability: Vec<PathBuf>,
    /// Language model to use, as provider:model, and after commas those that stand in for it; CAPABILITY= before it means
    /// that capability alone (planner and critic too). May be given several times, in the variable with ; between
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    pub model: Vec<String>,
    /// File to which all requests to models and their replies are added; replay:FILE plays them again
    #[arg(long, env = "MILLRACE_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Number of lanes of the log; fixed when the cluster is made
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub lanes: Option<u16>,
    /// Time after which a silent supervisor loses its lanes, such as 6s; fixed when the cluster is made
    #[arg(long, env = "MILLRACE_LANE_LEASE", value_name = "TIME", value_parser = duration::parse)]
    pub lane_lease: Option<Duration>,
    /// Time after which a silent worker loses its work, such as 15s; fixed when the cluster is made
    #[arg(long, env = "MILLRACE_WORK_LEASE", value_name = "TIME", value_parser = duration::parse)]
    pub work_lease: Option<Duration>,
    /// Put every write on disk before it is acknowledged: survives power loss, and is slower
    #[arg(long)]
    pub sync_always: bool,
    /// Log level of the processes, or a filter such as info,millrace_worker=debug
    #[arg(long, env = "MILLRACE_LOG", value_name = "LEVEL", default_value = "info")]
    pub log: String,
}

impl Options {
    /// A cluster on a data folder of which nothing is asked but that its server runs.
    pub fn on(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            workers: 0,
            slots: 0,
            supervisors: 0,
            critics: 0,
            capability: Vec::new(),
            model: Vec::new(),
            record: None,
            lanes: None,
            lane_lease: None,
            work_lease: None,
            sync_always: false,
            log: "info".into(),
        }
    }

    /// The names of those arguments that say how a cluster is started and that are not as they are by default.
    pub fn chosen_for_a_start(&self) -> Vec<&'static str> {
        let chosen = [
            ("--workers", self.workers != WORKERS),
            ("--slots", self.slots != SLOTS),
            ("--supervisors", self.supervisors != 1),
            ("--critics", self.critics != 1),
            ("--record", self.record.is_some()),
            ("--lanes", self.lanes.is_some()),
            ("--lane-lease", self.lane_lease.is_some()),
            ("--work-lease", self.work_lease.is_some()),
            ("--sync-always", self.sync_always),
        ];
        chosen.into_iter().filter_map(|(name, is_chosen)| is_chosen.then_some(name)).collect()
    }

    /// The choices as the arguments from which they would be read again.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let data = ["--data".into(), self.data.clone().into()];
        let others = [
            ("--workers", Some(self.workers.to_string())),
            ("--slots", Some(self.slots.to_string())),
            ("--supervisors", Some(self.supervisors.to_string())),
            ("--critics", Some(self.critics.to_string())),
            ("--lanes", self.lanes.map(|lanes| lanes.to_string())),
            ("--lane-lease", self.lane_lease.map(duration::format)),
            ("--work-lease", self.work_lease.map(duration::format)),
            ("--log", Some(self.log.clone())),
        ];
        // One word each, so that a value may begin with a dash.
        let others = others.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?).into()));
        let capabilities = self.capability.iter().map(|file| format!("--capability={}", whole(file)).into());
        let models = self.model.iter().map(|model| format!("--model={model}").into());
        let record = self.record.iter().flat_map(|file| ["--record".into(), file.clone().into()]);
        let sync_always = self.sync_always.then(|| "--sync-always".into());
        data.into_iter()
            .chain(others)
            .chain(capabilities)
            .chain(models)
            .chain(record)
            .chain(sync_always)
            .collect()
    }

    /// The processes beside the server, which `executable` is to be started as. What they need to know is in their
    /// environment; only supervisors, who make the cluster, need to know how many lanes it is to have.
    pub fn children(&self, executable: &Path) -> Vec<Child> {
        let environment = self.environment();
        let child = |role, number| Child {
            role,
            number,
            program: executable.to_owned(),
            arguments: self.role_arguments(role),
            environment: environment.clone(),
        };
        let all = |role, count: u32| (1..=count).map(move |number| (role, number));
        all(Role::Supervisor, self.supervisors)
            .chain(all(Role::Worker, self.workers))
            .chain(all(Role::Critic, self.critics))
            .map(|(role, number)| child(role, number))
            .collect()
    }

    fn role_arguments(&self, role: Role) -> Vec<String> {
        let lanes = self.lanes.filter(|_| role == Role::Supervisor).map(|lanes| format!("--lanes={lanes}"));
        let offered = self.offered().filter(|_| role == Role::Worker);
        std::iter::once(role.to_string())
            .chain(lanes)
            .chain(offered.map(|one| format!("--capability={one}")))
            .collect()
    }

    /// What the workers offer, where that is more than what is built in.
    fn offered(&self) -> impl Iterator<Item = String> {
        let built_in = builtin::NAMES.into_iter().filter(|_| !self.capability.is_empty());
        built_in.map(str::to_owned).chain(self.capability.iter().map(|file| whole(file)))
    }

    /// The names of the capabilities that its files describe.
    ///
    /// # Errors
    /// One of the files can't be read, or has a mistake in it.
    pub fn capabilities(&self) -> Result<Vec<String>, Fault> {
        self.capability.iter().map(|file| file::check(file)).collect()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let known = [
            ("MILLRACE_SLOTS", Some(self.slots.to_string())),
            ("MILLRACE_LOG", Some(self.log.clone())),
            ("MILLRACE_MODEL", (!self.model.is_empty()).then(|| self.model.join(";"))),
            ("MILLRACE_RECORD", self.record.as_deref().map(whole)),
            ("MILLRACE_LANE_LEASE", self.lane_lease.map(duration::format)),
            ("MILLRACE_WORK_LEASE", self.work_lease.map(duration::format)),
            ("MILLRACE_LANE_LEASE_IF_NEW", Some(duration::format(LANE_LEASE))),
            ("MILLRACE_WORK_LEASE_IF_NEW", Some(duration::format(WORK_LEASE))),
            ("MILLRACE_LINGER", Some(duration::format(LINGER))),
        ];
        known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// A path that means the same from any folder.
fn whole(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// What a process of the cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The message server and store.
    NatsServer,
    /// Owns plans.
    Supervisor,
    /// Does tasks.
    Worker,
    /// Judges results.
    Critic,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NatsServer => "nats-server",
            Self::Supervisor => "supervisor",
            Self::Worker => "worker",
            Self::Critic => "critic",
        })
    }
}

/// A process of the cluster, as it is to be started. The server's address and credentials are added to its
/// environment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// Decides when it is stopped.
    pub role: Role,
    /// Tells it from others of its role; from 1.
    pub number: u32,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// What it gets beside the environment of this process.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

impl Child {
    /// Its name in events and of its log: `worker-1`. There is one server, which has no number.
    pub fn name(&self) -> String {
        match self.role {
            Role::NatsServer => self.role.to_string(),
            Role::Supervisor | Role::Worker | Role::Critic => format!("{}-{}", self.role, self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Up {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &[&str]) -> Options {
        Up::parse_from([&["up"], arguments].concat()).options
    }

    #[test]
    fn options_written_as_arguments_are_read_back_the_same() {
        for arguments in [
            &["--data", "/d"][..],
            &[
                "--data",
                "/with space/ü",
                "--workers=4",
                "--slots=1",
                "--supervisors=3",
                "--critics=0",
                "--lanes=4",
            ],
            &[
                "--data=/d",
                "--model=-a:b",
                "--model=critic=c:d",
                "--capability=/a/b.yaml",
                "--record=calls.jsonl",
                "--lane-lease=1m 30s",
                "--work-lease=500ms",
                "--sync-always",
                "--log=x=debug",
            ],
        ] {
            let options = parse(arguments);
            let written = options.to_arguments();
            let read = Up::parse_from(["up".into()].into_iter().chain(written)).options;
            assert_eq!(read, options);
        }
    }

    #[test]
    fn as_many_lanes_can_be_asked_for_as_a_supervisor_takes() {
        #[derive(Parser)]
        struct Supervisor {
            #[command(flatten)]
            _arguments: millrace_supervisor::Args,
        }
        for (lanes, is_taken) in [("0", false), ("1", true), ("1024", true), ("1025", false)] {
            let lanes = format!("--lanes={lanes}");
            assert_eq!(Up::try_parse_from(["up", &lanes]).is_ok(), is_taken, "{lanes}");
            assert_eq!(Supervisor::try_parse_from(["supervisor", &lanes]).is_ok(), is_taken, "{lanes}");
        }
    }

    #[test]
    fn there_is_a_process_for_each_one_asked_for() {
        let options = parse(&[
            "--data=/d",
            "--workers=2",
            "--critics=0",
            "--model=m;critic=n",
            "--lane-lease=10s",
            "--slots=3",
            "--lanes=4",
        ]);
        let children = options.children(Path::new("/bin/millrace"));
        let names: Vec<String> = children.iter().map(Child::name).collect();
        assert_eq!(names, ["supervisor-1", "worker-1", "worker-2"]);
        assert_eq!(children[0].arguments, ["supervisor", "--lanes=4"]);
        assert_eq!(children[1].arguments, ["worker"]);
        let own = parse(&["--data=/d", "--capability=/a/b.yaml"]).children(Path::new("/bin/millrace"));
        assert_eq!(own[0].arguments, ["supervisor"]);
        let worker = &own[1].arguments;
        assert_eq!(
            (worker[1].as_str(), worker.last().unwrap().as_str()),
            ("--capability=research", "--capability=/a/b.yaml")
        );
        assert_eq!(worker.len(), 2 + builtin::NAMES.len());
        let environment = &children[1].environment;
        assert_eq!(environment["MILLRACE_SLOTS"], "3");
        assert_eq!(environment["MILLRACE_MODEL"], "m;critic=n");
        assert_eq!(environment["MILLRACE_LANE_LEASE"], "10s");
        assert!(
            !environment.contains_key("MILLRACE_WORK_LEASE"),
            "what was not chosen is left to the process"
        );
    }
}
