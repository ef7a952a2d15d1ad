//! An editor's sessions through `millrace acp`, with the client side of the protocol's own crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::schema::v1::{
    CancelNotification, ClientCapabilities, ContentBlock, FileSystemCapabilities, InitializeRequest,
    ListSessionsRequest, LoadSessionRequest, NewSessionRequest, PromptRequest, PromptResponse,
    ReadTextFileRequest, ReadTextFileResponse, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionId, SessionNotification, StopReason,
    WriteTextFileRequest, WriteTextFileResponse,
};
use agent_client_protocol::{Agent, Client, ConnectionTo, Error, Lines, Responder};
use millrace_client::{list_runs, read_document_list, read_plan};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{EndReason, Submission};
use millrace_protocol::subject::Topic;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(120);

type Permission = (RequestPermissionRequest, Responder<RequestPermissionResponse>);
type Files = Arc<Mutex<BTreeMap<PathBuf, String>>>;

/// An editor with its agent, a `millrace acp` that it has started.
struct Editor {
    agent: Child,
    connection: ConnectionTo<Agent>,
    updates: Arc<Mutex<Vec<Value>>>,
    permissions: mpsc::UnboundedReceiver<Permission>,
    /// The buffers of the editor, by their paths.
    buffers: Files,
    /// The files that the agent wrote.
    written: Files,
    _end: oneshot::Sender<()>,
}

impl Editor {
    async fn start(cluster: &TestCluster, arguments: &[&str]) -> Self {
        let mut command = tokio::process::Command::from(cluster.millrace_command());
        command.arg("acp").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut agent = command.spawn().unwrap();
        let (input, output) = (agent.stdin.take().unwrap(), agent.stdout.take().unwrap());
        let write = async |mut input: tokio::process::ChildStdin, line: String| {
            input.write_all(format!("{line}\n").as_bytes()).await?;
            Ok::<_, std::io::Error>(input)
        };
        let read = async |mut output: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>| {
            let line = output.next_line().await.transpose()?;
            Some((line, output))
        };
        let output = BufReader::new(output).lines();
        let (sink, stream) = (futures::sink::unfold(input, write), futures::stream::unfold(output, read));
        let transport = Lines::new(Box::pin(sink), Box::pin(stream));
        let updates: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (buffers, written) = (Files::default(), Files::default());
        let (asking, permissions) = mpsc::unbounded_channel();
        let (connected, connection) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (sent, read, kept) = (Arc::clone(&updates), Arc::clone(&buffers), Arc::clone(&written));
        tokio::spawn(async move {
            Client
                .builder()
                .on_receive_notification(
                    async move |notification: SessionNotification, _| {
                        sent.lock().unwrap().push(serde_json::to_value(notification.update).unwrap());
                        Ok(())
                    },
                    agent_client_protocol::on_receive_notification!(),
                )
                .on_receive_request(
                    async move |request: RequestPermissionRequest, responder, _| {
                        asking.send((request, responder)).map_err(|_| Error::internal_error())
                    },
                    agent_client_protocol::on_receive_request!(),
                )
                .on_receive_request(
                    async move |request: ReadTextFileRequest, responder, _| {
                        let text = read.lock().unwrap().get(&request.path).cloned();
                        let missing = || Error::resource_not_found(None);
                        responder.respond_with_result(text.map(ReadTextFileResponse::new).ok_or_else(missing))
                    },
                    agent_client_protocol::on_receive_request!(),
                )
                .on_receive_request(
                    async move |request: WriteTextFileRequest, responder, _| {
                        kept.lock().unwrap().insert(request.path, request.content);
                        responder.respond(WriteTextFileResponse::new())
                    },
                    agent_client_protocol::on_receive_request!(),
                )
                .connect_with(transport, async move |connection: ConnectionTo<Agent>| {
                    let _ = connected.send(connection);
                    let _ = ended.await;
                    Ok(())
                })
                .await
        });
        let connection = connection.await.unwrap();
        let files = FileSystemCapabilities::new().read_text_file(true).write_text_file(true);
        let request = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new().fs(files));
        let answer = timeout(TIMEOUT, connection.send_request(request).block_task()).await.unwrap().unwrap();
        assert!(answer.agent_capabilities.load_session, "{answer:?}");
        Self { agent, connection, updates, permissions, buffers, written, _end: end }
    }

    async fn new_session(&self, folder: &Path) -> SessionId {
        let created = self.connection.send_request(NewSessionRequest::new(folder)).block_task();
        timeout(TIMEOUT, created).await.unwrap().unwrap().session_id
    }

    async fn load_session(&self, session: &SessionId, folder: &Path) -> Result<(), Error> {
        let request = LoadSessionRequest::new(session.clone(), folder);
        timeout(TIMEOUT, self.connection.send_request(request).block_task()).await.unwrap().map(drop)
    }

    /// Sends a prompt; its response comes from the task.
    fn prompt(
        &self,
        session: &SessionId,
        blocks: &Value,
    ) -> tokio::task::JoinHandle<Result<PromptResponse, Error>> {
        let blocks: Vec<ContentBlock> = serde_json::from_value(blocks.clone()).unwrap();
        let sent = self.connection.send_request(PromptRequest::new(session.clone(), blocks));
        tokio::spawn(async move { timeout(TIMEOUT, sent.block_task()).await.unwrap() })
    }

    async fn stop_reason(&self, session: &SessionId, text: &str) -> StopReason {
        self.prompt(session, &json!([{ "type": "text", "text": text }])).await.unwrap().unwrap().stop_reason
    }

    async fn error_of(&self, session: &SessionId, blocks: &Value) -> String {
        self.prompt(session, blocks).await.unwrap().unwrap_err().message
    }

    async fn next_permission(&mut self) -> Permission {
        timeout(TIMEOUT, self.permissions.recv()).await.expect("a permission request").unwrap()
    }

    fn updates_of(&self, kind: &str) -> Vec<Value> {
        let updates = self.updates.lock().unwrap();
        updates.iter().filter(|update| update["sessionUpdate"] == kind).cloned().collect()
    }

    fn texts_of(&self, kind: &str) -> String {
        let chunks = self.updates_of(kind).into_iter();
        chunks.map(|chunk| chunk["content"]["text"].as_str().unwrap_or_default().to_owned()).collect()
    }

    async fn wait_for_text(&self, text: &str) {
        wait_for_value(TIMEOUT, text, async || {
            self.texts_of("agent_message_chunk").contains(text).then_some(())
        })
        .await;
    }
}

fn select((request, responder): Permission, option: &str) {
    let known = request.options.iter().any(|one| *one.option_id.0 == *option);
    assert!(known, "no option {option} in {request:?}");
    let outcome = RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.to_owned()));
    responder.respond(RequestPermissionResponse::new(outcome)).unwrap();
}

fn options_of(permission: &Permission) -> Vec<String> {
    permission.0.options.iter().map(|option| option.option_id.0.to_string()).collect()
}

/// Starts a worker with a capability of a scripted model.
fn start_worker(cluster: &mut TestCluster, folder: &Path, capability: &str, script: &str) {
    let name = capability.split(['\n', ' ']).nth(1).unwrap();
    let (file, model) = (folder.join(format!("{name}.yaml")), folder.join(format!("{name}-model.yaml")));
    std::fs::write(&file, capability).unwrap();
    std::fs::write(&model, script).unwrap();
    let model = format!("script:{}", model.display());
    let arguments = ["--capability", file.to_str().unwrap(), "--model", &model];
    cluster.start_process(ProcessRole::Worker, name, &arguments);
}

async fn only_run(bus: &Bus) -> RunId {
    let runs = list_runs(bus).await.unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].0.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_agent_loads_its_session_and_continues_the_run() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let folder = tempfile::tempdir().unwrap();
    start_worker(
        &mut cluster,
        folder.path(),
        "name: writer\ndescription: Writes.\ninstructions: Write.\ntools: [write_file, read_file]\n\
         approve: [{tool: write_file, description: Writes a file of the run.}]\n",
        "rules:\n- turns:\n  - text: I write the notes first.\n    calls: [write_file: {file_path: /notes.md, content: the notes}]\n  \
         - {text: The notes are written.}\n",
    );
    let bus = cluster.connect_bus().await;
    let work = tempfile::tempdir().unwrap();
    std::fs::write(work.path().join("a.txt"), "saved").unwrap();
    let mut editor = Editor::start(&cluster, &["--agent", "writer"]).await;
    editor.buffers.lock().unwrap().insert(work.path().join("a.txt"), "changed in the editor".into());
    let session = editor.new_session(work.path()).await;
    let link = format!("file://{}", work.path().join("a.txt").display());
    let blocks = json!([
        { "type": "text", "text": "Summarize" },
        { "type": "resource_link", "name": "a.txt", "uri": link },
    ]);
    let prompt = editor.prompt(&session, &blocks);
    let asked = editor.next_permission().await;
    let call = serde_json::to_value(&asked.0.tool_call).unwrap();
    assert_eq!(call["rawInput"], json!({ "file_path": "/notes.md", "content": "the notes" }), "{call}");
    assert_eq!(options_of(&asked), ["approve", "approve-all", "reject", "reject-all"]);
    let shown = editor.updates_of("tool_call");
    assert_eq!(shown[0]["toolCallId"], call["toolCallId"], "the request is about the call in the transcript");
    assert!(editor.texts_of("agent_thought_chunk").contains("I write the notes first."));

    editor.agent.kill().await.unwrap();
    assert!(prompt.await.unwrap().is_err());
    let run = only_run(&bus).await;

    let mut editor = Editor::start(&cluster, &["--agent", "writer"]).await;
    editor.load_session(&session, work.path()).await.unwrap();
    assert_eq!(editor.texts_of("user_message_chunk"), "Summarize a.txt");
    assert_eq!(editor.updates_of("tool_call")[0]["toolCallId"], call["toolCallId"]);
    let plan = editor.updates_of("plan");
    assert_eq!(plan.last().unwrap()["entries"][0]["status"], "in_progress", "{plan:?}");
    let again = editor.next_permission().await;
    assert_eq!(serde_json::to_value(&again.0.tool_call).unwrap(), call);
    select(again, "approve");

    let delivery = editor.next_permission().await;
    let target = work.path().join("notes.md");
    let diff = serde_json::to_value(&delivery.0.tool_call).unwrap();
    assert_eq!(diff["content"][0]["path"], json!(target), "{diff}");
    assert_eq!(diff["content"][0]["newText"], "the notes");
    assert!(editor.written.lock().unwrap().is_empty(), "nothing is written before the permission");
    editor.wait_for_text("The notes are written.").await;
    select(delivery, "write");
    let written =
        wait_for_value(TIMEOUT, "the file", async || editor.written.lock().unwrap().get(&target).cloned())
            .await;
    assert_eq!(written, "the notes");

    assert_eq!(only_run(&bus).await, run, "the loaded session has the same run");
    let plan = read_plan(&bus, &run).await.unwrap();
    assert_eq!(plan.run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    assert_eq!(plan.budget.spend.total.model_calls, 2, "no reply is paid for twice");
    let submitted = read_topic(&bus, bus.lane_of_run(&run), &run, &Topic::Submitted).await.unwrap();
    let submission: Submission = bus.decode_record(&submitted[0]).await.unwrap();
    let documents = read_document_list(&bus, &submission.documents.unwrap()).await.unwrap();
    let content = bus.blobs().get(&documents[0].sha256).await.unwrap();
    assert_eq!((documents[0].path.as_str(), content.as_slice()), ("a.txt", &b"changed in the editor"[..]));

    // A session that has ended is shown from the log, and offers no file again.
    let mut reader = Editor::start(&cluster, &["--agent", "writer"]).await;
    reader.load_session(&session, work.path()).await.unwrap();
    let text = reader.texts_of("agent_message_chunk");
    assert!(text.contains("The notes are written.") && text.contains("/notes.md"), "{text}");
    assert!(reader.permissions.try_recv().is_err());
    let listing = reader.connection.send_request(ListSessionsRequest::new().cwd(work.path().to_owned()));
    let listed = timeout(TIMEOUT, listing.block_task()).await.unwrap().unwrap().sessions;
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].session_id, listed[0].title.as_deref()), (&session, Some("Summarize a.txt")));
    for mut editor in [editor, reader] {
        editor.agent.kill().await.unwrap();
    }
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_answer_questions_and_are_cancelled_with_their_runs() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let folder = tempfile::tempdir().unwrap();
    start_worker(
        &mut cluster,
        folder.path(),
        "name: asker\ndescription: Asks.\ninstructions: Ask.\ntools: [ask_user]\n",
        "rules:\n- turns:\n  - calls: [ask_user: {question: Which colour?}]\n  \
         - calls: [ask_user: {question: \"Sure about {{last}}?\", options: [certain, unsure]}]\n  \
         - {text: \"Chosen: {{last}}\"}\n",
    );
    let bus = cluster.connect_bus().await;
    let work = tempfile::tempdir().unwrap();
    let mut editor = Editor::start(&cluster, &["--agent", "asker", "--by", "ann"]).await;
    let session = editor.new_session(work.path()).await;

    // A question without options is a message, and the next prompt is its answer.
    assert_eq!(editor.stop_reason(&session, "Paint it").await, StopReason::EndTurn);
    assert!(editor.texts_of("agent_message_chunk").contains("Which colour?"));
    let prompt = editor.prompt(&session, &json!([{ "type": "text", "text": "blue" }]));
    let asked = editor.next_permission().await;
    assert!(serde_json::to_string(&asked.0.tool_call).unwrap().contains("blue"), "{asked:?}");
    let busy = editor.error_of(&session, &json!([{ "type": "text", "text": "more" }])).await;
    assert!(busy.contains("has a prompt in progress"), "{busy}");

    // Cancelling ends the prompt and its run; the editor answers the open request as cancelled.
    editor.connection.send_notification(CancelNotification::new(session.clone())).unwrap();
    asked.1.respond(RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled)).unwrap();
    assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::Cancelled);
    let first = only_run(&bus).await;
    let end = read_plan(&bus, &first).await.unwrap().run.end.unwrap();
    assert_eq!(end.reason, EndReason::Cancelled, "{}", end.detail);

    // The next run of the session is answered to its end.
    assert_eq!(editor.stop_reason(&session, "Paint it again").await, StopReason::EndTurn);
    let prompt = editor.prompt(&session, &json!([{ "type": "text", "text": "red" }]));
    let asked = editor.next_permission().await;
    assert_eq!(options_of(&asked), ["option-1", "option-2", "decline"]);
    select(asked, "option-1");
    assert_eq!(prompt.await.unwrap().unwrap().stop_reason, StopReason::EndTurn);
    editor.wait_for_text("Chosen: ").await;
    assert!(editor.texts_of("agent_message_chunk").contains("certain"));
    assert_eq!(list_runs(&bus).await.unwrap().len(), 2);

    // Mistakes are errors in a sentence.
    let audio = json!([{ "type": "audio", "data": "", "mimeType": "audio/wav" }]);
    for (session, blocks, part) in [
        (session.clone(), audio, "audio"),
        (session.clone(), json!([]), "objective"),
        (SessionId::new("acp-unknown"), json!([{ "type": "text", "text": "x" }]), "load it first"),
        (
            session.clone(),
            json!([{ "type": "resource_link", "name": "p", "uri": "file:///etc/passwd" }]),
            "not below the folder",
        ),
    ] {
        let error = editor.error_of(&session, &blocks).await;
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = editor.load_session(&SessionId::new("acp-unknown"), work.path()).await.unwrap_err();
    assert!(error.message.contains("no run belongs to session acp-unknown"), "{error:?}");
    let relative = editor.connection.send_request(NewSessionRequest::new("work")).block_task();
    let error = timeout(TIMEOUT, relative).await.unwrap().unwrap_err();
    assert!(error.message.contains("absolute path"), "{error:?}");
    editor.agent.kill().await.unwrap();
    cluster.stop_all();
}
