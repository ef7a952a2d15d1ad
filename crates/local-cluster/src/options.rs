//! The options of a local cluster, and the processes that it consists of.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_runtime::clock;
use millrace_strict_yaml::LoadError;
use millrace_worker::{CapabilityDescription, builtin, file};
use serde::{Deserialize, Serialize};

use crate::folders;
use crate::server::ServerRoutes;

/// The leases of a new local cluster: a single server needs no elections, so short leases suffice and an interrupted run
/// is resumed soon.
const LANE_LEASE: Duration = Duration::from_secs(2);
const WORK_LEASE: Duration = Duration::from_secs(5);
/// How long a run stays in its lane after its end; short, because a cluster for one run stops soon after it.
const LINGER: Duration = Duration::from_millis(200);
/// The variable of the allocator for the time after which unused memory returns to the system, in milliseconds. Its default of one
/// second costs a busy worker a tenth of its processor time: what returns is soon requested again, and filled with zeros.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";
const PURGE_DELAY_MS: &str = "10000";
/// The option of the allocator that asks for huge pages.
const ALLOW_HUGE_PAGES: &str = "MIMALLOC_ALLOW_THP";

/// Defaults: number of workers, and number of concurrent tasks of each.
const WORKERS: u32 = 2;
const SLOTS: u32 = 8;

/// The maximum number of processes of a role on one machine: each takes some 30 MB of memory.
const MAX_PROCESSES: u32 = 256;
/// The maximum number of slots of a worker.
const MAX_SLOTS: i64 = 10_000;

fn parse_process_count(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("at least 1 process is needed".to_owned()),
        Ok(count) if count <= MAX_PROCESSES => Ok(count),
        Ok(_) => Err(format!(
            "at most {MAX_PROCESSES} processes of a role run on one machine; for more concurrent tasks raise --slots, or start \
             workers on other machines"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// The address of the HTTP API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiAddress {
    /// 127.0.0.1:7070, or the next free port.
    Default,
    /// This address.
    At(SocketAddr),
}

fn parse_api_address(text: &str) -> Result<ApiAddress, String> {
    match text {
        "" => Ok(ApiAddress::Default),
        address => address
            .parse()
            .map(ApiAddress::At)
            .map_err(|_| "expected an address such as 127.0.0.1:7070".to_owned()),
    }
}

fn parse_log_filter(text: &str) -> Result<String, String> {
    millrace_runtime::ops::telemetry::validate_log_filter(text).map_err(|error| {
        format!("{error}; give a level, such as debug, or a filter, such as info,millrace_worker=debug")
    })?;
    Ok(text.to_owned())
}

/// The web in a local cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebOffer {
    /// Workers offer `web_research` if the options or the environment allow it.
    AsConfigured,
    /// Workers do not offer it, even if the environment configures it.
    Never,
}

/// The options, which are also command-line arguments.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct LocalOptions {
    /// Folder for the cluster's store, logs and credentials
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::default_data_folder())]
    pub data: PathBuf,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = WORKERS, value_parser = parse_process_count)]
    pub workers: u32,
    /// Number of concurrent tasks of each worker
    #[arg(long, value_name = "N", default_value_t = SLOTS, value_parser = clap::value_parser!(u32).range(1..=MAX_SLOTS))]
    pub slots: u32,
    /// Number of supervisor processes
    #[arg(long, help_heading = "Cluster settings that few need", value_name = "N", default_value_t = 1, value_parser = parse_process_count)]
    pub supervisors: u32,
    /// Number of critic processes
    #[arg(long, help_heading = "Cluster settings that few need", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_PROCESSES)))]
    pub critics: u32,
    /// Capability file that workers provide in addition to the built-in capabilities (see `millrace schema capability`); may
    /// be given several times
    #[arg(long, value_name = "FILE")]
    pub capability: Vec<PathBuf>,
    /// Let agents search and read the web, with the capability web_research; a search engine (TAVILY_API_KEY or
    /// SEARXNG_URL) allows it too
    #[arg(long, env = "MILLRACE_WEB", value_parser = clap::builder::BoolishValueParser::new())]
    pub web: bool,
    /// Language model, as provider:model; separate fallback models with commas. Prefix with CAPABILITY= (planner, critic
    /// and verifier too) to set it for one capability only, or with the name of a tier for `tier:NAME` in capability files;
    /// verifier=none lets no model verify statements, and embeddings=MODEL lets searches find documents by meaning. May be given several times; in the variable, separate with ;
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    pub model: Vec<String>,
    /// Append all model requests and replies to this file; replay:FILE answers from such a file instead
    #[arg(
        long,
        help_heading = "Cluster settings that few need",
        env = "MILLRACE_RECORD",
        value_name = "FILE"
    )]
    pub record: Option<PathBuf>,
    /// Time limit of one call of a model, such as 20m, unless the model's settings have a timeout [default: 10m]
    #[arg(long, env = "MILLRACE_CALL_TIMEOUT", value_name = "TIME", value_parser = clock::parse_duration)]
    pub call_timeout: Option<Duration>,
    /// Number of lanes of the log; fixed when the cluster is created
    #[arg(long, help_heading = "Cluster settings that few need", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub lanes: Option<u16>,
    /// Lease of a supervisor on its lanes, such as 6s: without heartbeats it loses them after this time; fixed when the
    /// cluster is created
    #[arg(long, help_heading = "Cluster settings that few need", env = "MILLRACE_LANE_LEASE", value_name = "TIME", value_parser = clock::parse_duration)]
    pub lane_lease: Option<Duration>,
    /// Lease of a worker on its work, such as 15s: without heartbeats it loses it after this time; fixed when the cluster
    /// is created
    #[arg(long, help_heading = "Cluster settings that few need", env = "MILLRACE_WORK_LEASE", value_name = "TIME", value_parser = clock::parse_duration)]
    pub work_lease: Option<Duration>,
    /// Serve the HTTP API on this address [without ADDR: 127.0.0.1:7070, or the next free port]. Its URL is printed, and is in the
    /// file `api.url` of the data folder
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "", value_parser = parse_api_address)]
    pub api: Option<ApiAddress>,
    /// Sync every write to disk before it is acknowledged: survives power loss, but is slower
    #[arg(long, help_heading = "Cluster settings that few need")]
    pub sync_always: bool,
    /// Servers, started by the caller, with which the server forms a cluster. Copies on one machine protect from nothing, so only
    /// benchmarks have any.
    #[arg(skip)]
    pub routes: Option<ServerRoutes>,
    /// Log level of the processes, or a filter such as info,millrace_worker=debug
    #[arg(long, help_heading = "Cluster settings that few need", env = "MILLRACE_LOG", value_name = "LEVEL", default_value = "info", value_parser = parse_log_filter)]
    pub log: String,
}

impl LocalOptions {
    /// Options for a server on a data folder, with a supervisor or without any other process.
    pub fn for_one_command(data: &Path, has_supervisor: bool) -> Self {
        Self {
            data: data.to_owned(),
            workers: 0,
            slots: 0,
            supervisors: u32::from(has_supervisor),
            critics: 0,
            capability: Vec::new(),
            web: false,
            model: Vec::new(),
            record: None,
            call_timeout: None,
            lanes: None,
            lane_lease: None,
            work_lease: None,
            api: None,
            sync_always: false,
            routes: None,
            log: "info".into(),
        }
    }

    /// Returns the names of the options that only take effect when a cluster starts and that differ from their default.
    pub fn start_only_option_names(&self) -> Vec<&'static str> {
        let chosen = [
            ("--workers", self.workers != WORKERS),
            ("--slots", self.slots != SLOTS),
            ("--supervisors", self.supervisors != 1),
            ("--critics", self.critics != 1),
            ("--web", self.web),
            ("--record", self.record.is_some()),
            ("--call-timeout", self.call_timeout.is_some()),
            ("--lanes", self.lanes.is_some()),
            ("--lane-lease", self.lane_lease.is_some()),
            ("--work-lease", self.work_lease.is_some()),
            ("--api", self.api.is_some()),
            ("--sync-always", self.sync_always),
        ];
        chosen.into_iter().filter_map(|(name, is_chosen)| is_chosen.then_some(name)).collect()
    }

    /// Returns the options as command-line arguments.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let data = ["--data".into(), self.data.clone().into()];
        let others = [
            ("--workers", Some(self.workers.to_string())),
            ("--slots", Some(self.slots.to_string())),
            ("--supervisors", Some(self.supervisors.to_string())),
            ("--critics", Some(self.critics.to_string())),
            ("--lanes", self.lanes.map(|lanes| lanes.to_string())),
            ("--call-timeout", self.call_timeout.map(clock::format_duration)),
            ("--lane-lease", self.lane_lease.map(clock::format_duration)),
            ("--work-lease", self.work_lease.map(clock::format_duration)),
            ("--log", Some(self.log.clone())),
        ];
        // `--name=value`, because a value may begin with a dash.
        let others = others.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?).into()));
        let capabilities =
            self.capability.iter().map(|file| format!("--capability={}", to_absolute_path(file)).into());
        let models = self.model.iter().map(|model| format!("--model={model}").into());
        let record = self.record.iter().flat_map(|file| ["--record".into(), file.clone().into()]);
        let api = self.api.map(|api| match api {
            ApiAddress::Default => "--api".into(),
            ApiAddress::At(address) => format!("--api={address}").into(),
        });
        let sync_always = self.sync_always.then(|| "--sync-always".into());
        let web = self.web.then(|| "--web".into());
        data.into_iter()
            .chain(others)
            .chain(capabilities)
            .chain(models)
            .chain(record)
            .chain(api)
            .chain(sync_always)
            .chain(web)
            .collect()
    }

    /// Returns the processes of the cluster other than the server; `executable` is their program. Their settings are passed
    /// in the environment, except the number of lanes, which only supervisors need, because they create the cluster.
    pub fn child_specs(&self, executable: &Path) -> Vec<ChildSpec> {
        let environment = self.child_environment();
        let child = |role, number| ChildSpec {
            role,
            number,
            program: executable.to_owned(),
            arguments: self.role_arguments(role),
            environment: environment.clone().into_iter().chain(allocator_variable(role)).collect(),
        };
        let all = |role, count: u32| (1..=count).map(move |number| (role, number));
        all(ChildRole::Supervisor, self.supervisors)
            .chain(all(ChildRole::Worker, self.workers))
            .chain(all(ChildRole::Critic, self.critics))
            .chain(all(ChildRole::Gateway, u32::from(self.api.is_some())))
            .map(|(role, number)| child(role, number))
            .collect()
    }

    /// Like [`Self::child_specs`], with the given web.
    pub fn child_specs_with_web(&self, executable: &Path, web: WebOffer) -> Vec<ChildSpec> {
        let mut children = self.child_specs(executable);
        match web {
            WebOffer::AsConfigured => {}
            WebOffer::Never => children.iter_mut().for_each(ChildSpec::withhold_web),
        }
        children
    }

    fn role_arguments(&self, role: ChildRole) -> Vec<String> {
        let lanes =
            self.lanes.filter(|_| role == ChildRole::Supervisor).map(|lanes| format!("--lanes={lanes}"));
        let offered = self.offered_capabilities().filter(|_| role == ChildRole::Worker);
        if role == ChildRole::Gateway {
            return self.gateway_arguments();
        }
        std::iter::once(role.to_string())
            .chain(lanes)
            .chain(offered.map(|one| capability_argument(&one)))
            .collect()
    }

    fn gateway_arguments(&self) -> Vec<String> {
        let address = match self.api {
            Some(ApiAddress::At(address)) => Some(format!("--api={address}")),
            Some(ApiAddress::Default) | None => None,
        };
        let file = format!("--url-file={}", to_absolute_path(&self.api_url_path()));
        ["serve".to_owned(), file].into_iter().chain(address).collect()
    }

    /// The file with the URL of the HTTP API, while that is served.
    pub fn api_url_path(&self) -> PathBuf {
        self.data.join("api.url")
    }

    /// Returns the capabilities of the workers, if they have more than the built-in ones.
    fn offered_capabilities(&self) -> impl Iterator<Item = String> {
        let built_in = builtin::NAMES.into_iter().chain(builtin::web_capability_names(self.web));
        let built_in = built_in.filter(|_| !self.capability.is_empty());
        built_in.map(str::to_owned).chain(self.capability.iter().map(|file| to_absolute_path(file)))
    }

    /// Returns the names of the capabilities in the capability files.
    pub fn file_capability_names(&self) -> Result<Vec<String>, LoadError> {
        Ok(self
            .describe_file_capabilities()?
            .into_iter()
            .map(|described| described.name.to_string())
            .collect())
    }

    /// Validates the capability files and returns the descriptions of their capabilities.
    pub fn describe_file_capabilities(&self) -> Result<Vec<CapabilityDescription>, LoadError> {
        self.capability.iter().map(|file| file::describe_capability_file(file)).collect()
    }

    /// The variables that all processes get.
    fn child_environment(&self) -> BTreeMap<String, String> {
        let variables = [
            ("MILLRACE_SLOTS", Some(self.slots.to_string())),
            ("MILLRACE_LOG", Some(self.log.clone())),
            ("MILLRACE_MODEL", (!self.model.is_empty()).then(|| self.model.join(";"))),
            ("MILLRACE_WEB", self.web.then(|| "true".to_owned())),
            ("MILLRACE_RECORD", self.record.as_deref().map(to_absolute_path)),
            ("MILLRACE_CALL_TIMEOUT", self.call_timeout.map(clock::format_duration)),
            ("MILLRACE_LANE_LEASE", self.lane_lease.map(clock::format_duration)),
            ("MILLRACE_WORK_LEASE", self.work_lease.map(clock::format_duration)),
            ("MILLRACE_LANE_LEASE_IF_NEW", Some(clock::format_duration(LANE_LEASE))),
            ("MILLRACE_WORK_LEASE_IF_NEW", Some(clock::format_duration(WORK_LEASE))),
            ("MILLRACE_LINGER", Some(clock::format_duration(LINGER))),
        ];
        variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// Returns the argument of a worker that names a capability.
fn capability_argument(name: &str) -> String {
    format!("--capability={name}")
}

/// Returns the variable for the allocator of a process, unless the user has set it. Workers and critics allocate the same again and
/// again, so they keep what they free for a while. A supervisor holds the plans of large runs: with huge pages they would take a
/// quarter more memory.
fn allocator_variable(role: ChildRole) -> Option<(String, String)> {
    let (name, value) = match role {
        ChildRole::Worker | ChildRole::Critic => (PURGE_DELAY, PURGE_DELAY_MS),
        ChildRole::Supervisor => (ALLOW_HUGE_PAGES, "0"),
        ChildRole::NatsServer | ChildRole::Gateway => return None,
    };
    std::env::var_os(name).is_none().then(|| (name.to_owned(), value.to_owned()))
}

fn to_absolute_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The role of a process in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChildRole {
    /// Message broker and storage.
    NatsServer,
    /// Schedules the tasks of runs.
    Supervisor,
    /// Executes tasks.
    Worker,
    /// Reviews results.
    Critic,
    /// Serves the HTTP API.
    Gateway,
}

impl fmt::Display for ChildRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NatsServer => "nats-server",
            Self::Supervisor => "supervisor",
            Self::Worker => "worker",
            Self::Critic => "critic",
            Self::Gateway => "gateway",
        })
    }
}

/// The command line of a process of the cluster. The address and credentials of the server are added to its environment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildSpec {
    /// The role, which determines the order of stopping.
    pub role: ChildRole,
    /// Number of the process among those of its role, from 1.
    pub number: u32,
    pub program: PathBuf,
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Variables in addition to the environment of this process.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

impl ChildSpec {
    /// Removes `web_research` from the capabilities of a worker, also if its environment has a search engine. Agents of capability
    /// files keep their tools.
    fn withhold_web(&mut self) {
        if self.role != ChildRole::Worker {
            return;
        }
        let web = capability_argument(builtin::WEB_RESEARCH);
        self.arguments.retain(|argument| *argument != web);
        if self.arguments.iter().all(|argument| !argument.starts_with(&capability_argument(""))) {
            self.arguments.extend(builtin::NAMES.map(capability_argument));
        }
        self.environment.insert("MILLRACE_WEB".into(), "false".into());
    }

    /// Returns the name in events and of the log: `worker-1`. The server has no number.
    pub fn process_name(&self) -> String {
        match self.role {
            ChildRole::NatsServer => self.role.to_string(),
            ChildRole::Supervisor | ChildRole::Worker | ChildRole::Critic | ChildRole::Gateway => {
                format!("{}-{}", self.role, self.number)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct UpCommandLine {
        #[command(flatten)]
        options: LocalOptions,
    }

    fn parse_options(arguments: &[&str]) -> LocalOptions {
        UpCommandLine::parse_from([&["up"], arguments].concat()).options
    }

    #[test]
    fn options_survive_a_round_trip_through_arguments() {
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
                "--call-timeout=20m",
                "--lane-lease=1m 30s",
                "--work-lease=500ms",
                "--api=127.0.0.1:7171",
                "--sync-always",
                "--log=x=debug",
            ],
            &["--data=/d", "--api"],
        ] {
            let options = parse_options(arguments);
            let written = options.to_arguments();
            let read = UpCommandLine::parse_from(["up".into()].into_iter().chain(written)).options;
            assert_eq!(read, options);
        }
    }

    #[test]
    fn lanes_have_the_same_range_as_for_a_supervisor() {
        #[derive(Parser)]
        struct SupervisorCommandLine {
            #[command(flatten)]
            _arguments: millrace_supervisor::SupervisorArgs,
        }
        for (lanes, is_valid) in [("0", false), ("1", true), ("1024", true), ("1025", false)] {
            let lanes = format!("--lanes={lanes}");
            assert_eq!(UpCommandLine::try_parse_from(["up", &lanes]).is_ok(), is_valid, "{lanes}");
            assert_eq!(
                SupervisorCommandLine::try_parse_from(["supervisor", &lanes]).is_ok(),
                is_valid,
                "{lanes}"
            );
        }
    }

    #[test]
    fn counts_and_filters_without_sense_are_refused() {
        let error = |arguments: &[&str]| {
            UpCommandLine::try_parse_from([&["up"], arguments].concat()).err().map(|error| error.to_string())
        };
        let text = error(&["--workers=100000"]).unwrap();
        assert!(text.contains("at most 256") && text.contains("--slots"), "{text}");
        for refused in ["--workers=0", "--workers=257", "--supervisors=257", "--critics=257", "--slots=10001"]
        {
            assert!(error(&[refused]).is_some(), "{refused}");
        }
        let text = error(&["--log=nonsense=foo=bar"]).unwrap();
        assert!(text.contains("info,millrace_worker=debug"), "{text}");
        for valid in
            ["--workers=256", "--critics=0", "--slots=10000", "--log=debug", "--log=info,async_nats=trace"]
        {
            assert_eq!(error(&[valid]), None, "{valid}");
        }
    }

    #[test]
    fn children_match_the_options() {
        let options = parse_options(&[
            "--data=/d",
            "--workers=2",
            "--critics=0",
            "--model=m;critic=n",
            "--lane-lease=10s",
            "--slots=3",
            "--lanes=4",
        ]);
        let children = options.child_specs(Path::new("/bin/millrace"));
        let names: Vec<String> = children.iter().map(ChildSpec::process_name).collect();
        assert_eq!(names, ["supervisor-1", "worker-1", "worker-2"]);
        assert_eq!(children[0].arguments, ["supervisor", "--lanes=4"]);
        assert_eq!(children[1].arguments, ["worker"]);
        let gateway =
            parse_options(&["--data=/d", "--api", "127.0.0.1:0"]).child_specs(Path::new("/bin/millrace"));
        let gateway = gateway.last().unwrap();
        assert_eq!(gateway.process_name(), "gateway-1");
        assert_eq!(gateway.arguments, ["serve", "--url-file=/d/api.url", "--api=127.0.0.1:0"]);
        let with_file =
            parse_options(&["--data=/d", "--capability=/a/b.yaml"]).child_specs(Path::new("/bin/millrace"));
        assert_eq!(with_file[0].arguments, ["supervisor"]);
        let worker = &with_file[1].arguments;
        assert_eq!(
            (worker[1].as_str(), worker.last().unwrap().as_str()),
            ("--capability=research", "--capability=/a/b.yaml")
        );
        assert_eq!(worker.len(), 2 + builtin::NAMES.len());
        let environment = &children[1].environment;
        assert_eq!(environment["MILLRACE_SLOTS"], "3");
        assert_eq!(environment["MILLRACE_MODEL"], "m;critic=n");
        assert_eq!(environment["MILLRACE_LANE_LEASE"], "10s");
        assert!(!environment.contains_key("MILLRACE_WORK_LEASE"), "unset options are left to the process");
    }

    #[test]
    fn workers_without_the_web_offer_no_web_research() {
        for arguments in [
            &["--data=/d", "--critics=0"][..],
            &["--data=/d", "--critics=0", "--web", "--capability=/a/b.yaml"],
        ] {
            let options = parse_options(arguments);
            let worker =
                options.child_specs_with_web(Path::new("/bin/millrace"), WebOffer::Never).pop().unwrap();
            assert_eq!(worker.role, ChildRole::Worker);
            let built_in: Vec<String> = builtin::NAMES.map(capability_argument).into();
            assert_eq!(worker.arguments[1..=built_in.len()], built_in);
            assert!(!worker.arguments.iter().any(|one| one.contains("web")), "{:?}", worker.arguments);
            // A worker adds the capability if this variable is true.
            assert_eq!(worker.environment["MILLRACE_WEB"], "false");
            let as_configured =
                options.child_specs_with_web(Path::new("/bin/millrace"), WebOffer::AsConfigured);
            assert_eq!(
                as_configured.last().unwrap().arguments,
                options.child_specs(Path::new("/bin/millrace")).pop().unwrap().arguments
            );
        }
    }
}
