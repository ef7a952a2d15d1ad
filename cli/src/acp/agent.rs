//! Answers the requests of an editor. Each is handled by a task of its own: the connection handles the next message meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::schema::v1::{
    self as acp, AgentCapabilities, AvailableCommand, AvailableCommandsUpdate, CancelNotification,
    FileSystemCapabilities, Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest,
    ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, NewSessionRequest, NewSessionResponse,
    PromptCapabilities, PromptRequest, PromptResponse, SessionCapabilities, SessionInfo,
    SessionListCapabilities, SessionUpdate,
};
use agent_client_protocol::{Agent, Client, ConnectionTo, Error, Responder, Stdio};
use millrace_agent::builtin::Extractive;
use millrace_client::list_runs;
use millrace_local_cluster::LocalOptions;
use millrace_local_cluster::users::ClusterUse;
use millrace_protocol::ids::SessionId;
use millrace_protocol::safe_text::single_line;
use millrace_runtime::{Bus, program};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::editor::Editor;
use super::session::{CONTINUE, ClusterTraits, DECLINE, EditorSession, FOLDER_LABEL, RunDefaults};
use crate::exit::{CommandError, CommandExit};
use crate::invocation::complete_hints;
use crate::session::LastingCluster;
use crate::target::ClusterTarget;

/// The maximum number of sessions in a list, the newest ones.
const MAX_SESSIONS: usize = 200;

/// The code of an error that the request is the cause of.
const INVALID: i32 = -32602;
/// The code of an error of the environment.
const INTERNAL: i32 = -32603;

/// The cluster of an editor's sessions.
pub enum ClusterChoice {
    /// The cluster of a server.
    Server(ClusterTarget),
    /// A cluster on this machine, which is started if it does not run.
    Local(Box<LocalOptions>),
}

pub struct AgentSettings {
    pub cluster: ClusterChoice,
    pub defaults: RunDefaults,
}

struct ConnectedCluster {
    bus: Bus,
    traits: ClusterTraits,
    /// A local cluster does not stop as long as one of these is held.
    _lasting: Option<LastingCluster>,
    _cluster_use: Option<ClusterUse>,
}

struct EditorAgent {
    settings: AgentSettings,
    /// Connected with the first session, so that a cluster that can't be reached is an error that the editor shows.
    cluster: OnceCell<ConnectedCluster>,
    sessions: Mutex<HashMap<SessionId, Arc<EditorSession>>>,
    /// The access to files that the editor offers.
    files: Mutex<FileSystemCapabilities>,
}

/// Serves the editor on standard input and output until it closes its end.
///
/// # Errors
/// The connection fails.
pub async fn serve_editor(settings: AgentSettings, shutdown: CancellationToken) -> Result<(), Error> {
    let agent = Arc::new(EditorAgent {
        settings,
        cluster: OnceCell::new(),
        sessions: Mutex::default(),
        files: Mutex::default(),
    });
    let [initializing, creating, loading, listing, prompting, cancelling] =
        std::array::from_fn(|_| Arc::clone(&agent));
    let serving = Agent
        .builder()
        .name("millrace")
        .on_receive_request(
            async move |request: InitializeRequest, responder, _| {
                responder.respond(initializing.initialize(request))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, connection| {
                spawn(Arc::clone(&creating).answer_new_session(request, responder, connection))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, connection| {
                spawn(Arc::clone(&loading).answer_load_session(request, responder, connection))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ListSessionsRequest, responder, _| {
                let agent = Arc::clone(&listing);
                spawn(async move { responder.respond_with_result(agent.list_sessions(request).await) })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection| {
                spawn(Arc::clone(&prompting).answer_prompt(request, responder, connection))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: CancelNotification, _| {
                let agent = Arc::clone(&cancelling);
                spawn(async move { agent.cancel(&notification.session_id).await })
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_to(Stdio::new());
    tokio::select! {
        served = serving => served,
        () = shutdown.cancelled() => Ok(()),
    }
}

/// Handles a message in a task of its own.
fn spawn<T: Send + 'static>(handling: impl Future<Output = T> + Send + 'static) -> Result<(), Error> {
    tokio::spawn(handling);
    Ok(())
}

/// The error that the editor shows.
fn to_editor_error(error: CommandError) -> Error {
    let code = if error.exit == CommandExit::Refused { INVALID } else { INTERNAL };
    Error::new(code, complete_hints(&program::format_with_causes(error.error.as_ref())))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(INVALID, message)
}

impl EditorAgent {
    fn initialize(&self, request: InitializeRequest) -> InitializeResponse {
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = request.client_capabilities.fs;
        let capabilities = AgentCapabilities::new()
            .load_session(true)
            .prompt_capabilities(PromptCapabilities::new().image(true).embedded_context(true))
            .session_capabilities(SessionCapabilities::new().list(SessionListCapabilities::new()));
        let info = Implementation::new("millrace", env!("CARGO_PKG_VERSION")).title("Millrace".to_owned());
        InitializeResponse::new(ProtocolVersion::V1).agent_capabilities(capabilities).agent_info(info)
    }

    async fn answer_new_session(
        self: Arc<Self>,
        request: NewSessionRequest,
        responder: Responder<NewSessionResponse>,
        connection: ConnectionTo<Client>,
    ) -> Result<(), Error> {
        let created = self.create_session(request).await;
        let session = created.as_ref().ok().map(|created| created.session_id.clone());
        responder.respond_with_result(created)?;
        session.iter().for_each(|session| self.send_commands(&connection, session));
        Ok(())
    }

    async fn answer_load_session(
        self: Arc<Self>,
        request: LoadSessionRequest,
        responder: Responder<LoadSessionResponse>,
        connection: ConnectionTo<Client>,
    ) -> Result<(), Error> {
        let session = request.session_id.clone();
        let loaded = self.load_session(request, &connection).await;
        responder.respond_with_result(loaded)?;
        self.send_commands(&connection, &session);
        Ok(())
    }

    /// Carries out a prompt, which the editor can also withdraw as a request.
    async fn answer_prompt(
        self: Arc<Self>,
        request: PromptRequest,
        responder: Responder<PromptResponse>,
        connection: ConnectionTo<Client>,
    ) -> Result<(), Error> {
        let stop = CancellationToken::new();
        let withdrawn = responder.cancellation();
        let carrying_out = self.carry_out_prompt(request, &connection, stop.clone());
        tokio::pin!(carrying_out);
        let result = tokio::select! {
            result = &mut carrying_out => result,
            () = withdrawn.cancelled() => {
                stop.cancel();
                carrying_out.await
            }
        };
        responder.respond_with_result(result)
    }

    async fn cluster(&self) -> Result<&ConnectedCluster, Error> {
        self.cluster.get_or_try_init(|| self.connect()).await.map_err(to_editor_error)
    }

    async fn connect(&self) -> Result<ConnectedCluster, CommandError> {
        match &self.settings.cluster {
            ClusterChoice::Server(target) => {
                let (bus, cluster_use) = target.use_cluster().await?;
                let traits = ClusterTraits::default();
                Ok(ConnectedCluster { bus, traits, _lasting: None, _cluster_use: cluster_use })
            }
            ClusterChoice::Local(options) => {
                let cluster = LastingCluster::join_or_start(options).await?;
                let has_model = !self.settings.defaults.models.is_empty();
                let is_extractive = !has_model && cluster.info.models == [Extractive::NAME];
                let traits = ClusterTraits { is_extractive, is_new: cluster.is_new };
                let bus = cluster.bus.clone();
                Ok(ConnectedCluster { bus, traits, _lasting: Some(cluster), _cluster_use: None })
            }
        }
    }

    fn editor(&self, connection: &ConnectionTo<Client>, session: &acp::SessionId) -> Editor {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Editor::new(connection.clone(), session.clone(), files)
    }

    fn open_session(&self, session: SessionId, folder: PathBuf, more: Vec<PathBuf>) -> Arc<EditorSession> {
        let opened = Arc::new(EditorSession::new(session.clone(), folder, more));
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        // The runs of one that is loaded again are not followed twice.
        sessions.insert(session, Arc::clone(&opened));
        opened
    }

    fn find_session(&self, id: &acp::SessionId) -> Result<Arc<EditorSession>, Error> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = SessionId::new(&*id.0).ok().and_then(|id| sessions.get(&id).cloned());
        session.ok_or_else(|| {
            invalid(format!("session {:?} is not open; load it first", single_line(&id.to_string())))
        })
    }

    async fn create_session(&self, request: NewSessionRequest) -> Result<NewSessionResponse, Error> {
        check_folder(&request.cwd)?;
        ignore_mcp_servers(&request.mcp_servers);
        self.cluster().await?;
        let id = format!("acp-{}", uuid::Uuid::now_v7().simple());
        let session = SessionId::new(id.as_str()).expect("letters, digits and '-' are a session name");
        self.open_session(session, request.cwd, request.additional_directories);
        Ok(NewSessionResponse::new(id))
    }

    async fn load_session(
        &self,
        request: LoadSessionRequest,
        connection: &ConnectionTo<Client>,
    ) -> Result<LoadSessionResponse, Error> {
        check_folder(&request.cwd)?;
        ignore_mcp_servers(&request.mcp_servers);
        let bus = &self.cluster().await?.bus;
        let session = SessionId::new(&*request.session_id.0).map_err(|error| invalid(error.to_string()))?;
        let editor = self.editor(connection, &request.session_id);
        let session = self.open_session(session, request.cwd, request.additional_directories);
        let loaded = session.load(bus, &editor, &self.settings.defaults.by).await;
        loaded.map_err(to_editor_error)?;
        Ok(LoadSessionResponse::new())
    }

    /// Lists the sessions that editors have started, by their last changes.
    async fn list_sessions(&self, request: ListSessionsRequest) -> Result<ListSessionsResponse, Error> {
        let bus = &self.cluster().await?.bus;
        let runs = list_runs(bus).await.map_err(|fault| to_editor_error(fault.into()))?;
        let mut sessions: HashMap<SessionId, (jiff::Timestamp, SessionInfo)> = HashMap::new();
        for summary in runs.into_iter().filter_map(|(_, summary)| summary) {
            let (Some(session), Some(folder)) = (summary.session, summary.labels.get(FOLDER_LABEL)) else {
                continue;
            };
            if request.cwd.as_ref().is_some_and(|wanted| wanted != Path::new(folder)) {
                continue;
            }
            // The first run gives the title: runs are listed from the oldest on.
            let (updated, _) = sessions.entry(session.clone()).or_insert_with(|| {
                let info = SessionInfo::new(session.to_string(), folder.clone());
                (summary.updated, info.title(single_line(&summary.objective)))
            });
            *updated = summary.updated.max(*updated);
        }
        let mut sessions: Vec<_> = sessions.into_values().collect();
        sessions.sort_by_key(|(updated, _)| std::cmp::Reverse(*updated));
        sessions.truncate(MAX_SESSIONS);
        let infos = sessions.into_iter().map(|(updated, info)| info.updated_at(updated.to_string()));
        Ok(ListSessionsResponse::new(infos.collect()))
    }

    async fn carry_out_prompt(
        &self,
        request: PromptRequest,
        connection: &ConnectionTo<Client>,
        stop: CancellationToken,
    ) -> Result<PromptResponse, Error> {
        let session = self.find_session(&request.session_id)?;
        let editor = self.editor(connection, &request.session_id);
        let ConnectedCluster { bus, traits, .. } = self.cluster().await?;
        let how = (&self.settings.defaults, stop, *traits);
        let reason = session.carry_out_prompt(bus, &editor, request.prompt, how).await;
        reason.map(PromptResponse::new).map_err(to_editor_error)
    }

    async fn cancel(&self, session: &acp::SessionId) {
        let (Ok(session), Ok(cluster)) = (self.find_session(session), self.cluster().await) else { return };
        if let Err(error) = session.cancel(&cluster.bus, &self.settings.defaults.by).await {
            note!("the run was not cancelled: {:#}", error.error);
        }
    }

    fn send_commands(&self, connection: &ConnectionTo<Client>, session: &acp::SessionId) {
        let commands = vec![
            AvailableCommand::new(
                CONTINUE,
                "Follow the run of this session that has not ended; resume it if it was interrupted or paused",
            ),
            AvailableCommand::new(DECLINE, "Decline to answer the question of the run"),
        ];
        let update = AvailableCommandsUpdate::new(commands);
        self.editor(connection, session).send(SessionUpdate::AvailableCommandsUpdate(update));
    }
}

fn check_folder(folder: &Path) -> Result<(), Error> {
    match folder.is_absolute() {
        true => Ok(()),
        false => {
            Err(invalid(format!("cwd must be an absolute path, and is {:?}", folder.display().to_string())))
        }
    }
}

/// The tools of a run are those of its capabilities.
fn ignore_mcp_servers(servers: &[acp::McpServer]) {
    if !servers.is_empty() {
        note!("ignoring {} MCP servers of the editor; name them in capability files instead", servers.len());
    }
}
