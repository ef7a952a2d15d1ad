//! What a local cluster is made of: the user's choices, and the processes that follow from them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::folders;

/// The choices, also as command-line arguments.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Folder that holds the cluster's store, logs and credentials
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::data())]
    pub data: PathBuf,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub workers: u32,
    /// Number of tasks that each worker does at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub slots: u32,
    /// Number of supervisor processes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub supervisors: u32,
    /// Number of critic processes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub critics: u32,
    /// Language model that workers and critics ask
    #[arg(long, env = "MILLRACE_MODEL", value_name = "MODEL")]
    pub model: Option<String>,
    /// Time after which a silent supervisor's lanes are taken over, such as 10s
    #[arg(long, env = "MILLRACE_LANE_LEASE", value_name = "TIME", value_parser = parse_duration)]
    pub lane_lease: Option<Duration>,
    /// Time after which a silent worker's task is given to another, such as 30s
    #[arg(long, env = "MILLRACE_TASK_LEASE", value_name = "TIME", value_parser = parse_duration)]
    pub task_lease: Option<Duration>,
    /// Put every write on disk before it is acknowledged: survives power loss, and is slower
    #[arg(long)]
    pub sync_always: bool,
    /// Log level of the processes, or a filter such as info,millrace_worker=debug
    #[arg(long, env = "MILLRACE_LOG", value_name = "LEVEL", default_value = "info")]
    pub log: String,
}

impl Options {
    /// The choices as the arguments from which they would be read again.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let Self {
            data,
            workers,
            slots,
            supervisors,
            critics,
            model,
            lane_lease,
            task_lease,
            sync_always,
            log,
        } = self;
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--data", data.into());
        for (name, number) in [
            ("--workers", workers),
            ("--slots", slots),
            ("--supervisors", supervisors),
            ("--critics", critics),
        ] {
            add(name, number.to_string().into());
        }
        if let Some(model) = model {
            add("--model", model.into());
        }
        for (name, lease) in [("--lane-lease", lane_lease), ("--task-lease", task_lease)] {
            if let Some(lease) = lease {
                add(name, format_duration(*lease).into());
            }
        }
        add("--log", log.into());
        arguments.extend(sync_always.then(|| "--sync-always".into()));
        arguments
    }

    /// The processes beside the server, which `executable` is to be started as. What they need to know is in their
    /// environment, under the names of the arguments above.
    pub fn children(&self, executable: &Path) -> Vec<Child> {
        let environment = self.environment();
        let child = |role, number| Child {
            role,
            number,
            program: executable.to_owned(),
            arguments: vec![role.to_string()],
            environment: environment.clone(),
        };
        let all = |role, count: u32| (1..=count).map(move |number| (role, number));
        all(Role::Supervisor, self.supervisors)
            .chain(all(Role::Worker, self.workers))
            .chain(all(Role::Critic, self.critics))
            .map(|(role, number)| child(role, number))
            .collect()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let always =
            [("MILLRACE_SLOTS", Some(self.slots.to_string())), ("MILLRACE_LOG", Some(self.log.clone()))];
        let chosen = [
            ("MILLRACE_MODEL", self.model.clone()),
            ("MILLRACE_LANE_LEASE", self.lane_lease.map(format_duration)),
            ("MILLRACE_TASK_LEASE", self.task_lease.map(format_duration)),
        ];
        always.into_iter().chain(chosen).filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
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

/// Reads a positive time such as `10s`, `500ms` or `1m 30s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration =
        text.parse().map_err(|error| format!("{error} (a time is written as 10s)"))?;
    let duration = Duration::try_from(duration).map_err(|_| "a time can't be negative".to_owned())?;
    if duration.is_zero() { Err("a time of zero makes no sense here".to_owned()) } else { Ok(duration) }
}

fn format_duration(duration: Duration) -> String {
    let signed = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    format!("{signed:#}")
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
            &["--data", "/with space/ü", "--workers=4", "--slots=1", "--supervisors=3", "--critics=0"],
            &[
                "--data=/d",
                "--model=a:b",
                "--lane-lease=1m 30s",
                "--task-lease=500ms",
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
    fn there_is_a_process_for_each_one_asked_for() {
        let options =
            parse(&["--data=/d", "--workers=2", "--critics=0", "--model=m", "--lane-lease=10s", "--slots=3"]);
        let children = options.children(Path::new("/bin/millrace"));
        let names: Vec<String> = children.iter().map(Child::name).collect();
        assert_eq!(names, ["supervisor-1", "worker-1", "worker-2"]);
        assert_eq!(children[1].arguments, ["worker"]);
        let environment = &children[1].environment;
        assert_eq!(environment["MILLRACE_SLOTS"], "3");
        assert_eq!(environment["MILLRACE_MODEL"], "m");
        assert_eq!(environment["MILLRACE_LANE_LEASE"], "10s");
        assert!(
            !environment.contains_key("MILLRACE_TASK_LEASE"),
            "what was not chosen is left to the process"
        );
    }

    #[test]
    fn times_need_a_unit_and_are_positive() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "10", "-1s", "0s", "soon"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
