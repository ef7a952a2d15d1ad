//! Programs that are MCP servers: how they are started, so that they end with this process, and where what they say
//! on standard error goes.

use std::io;
use std::process::Stdio;

use process_wrap::tokio::{CommandWrap, KillOnDrop, ProcessGroup};
use rmcp::transport::TokioChildProcess;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tracing::info;

use super::settings::Server;
use crate::bound;
use crate::execute::Launcher;

/// What programs commonly need of the environment. The rest is named in the settings.
const COMMON: [&str; 9] = ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// Starts a server's program. With a launcher the kernel kills it when this process dies, however it dies; without
/// one it is left to notice that its standard input has closed.
pub(super) async fn start(server: &Server, launcher: Option<&Launcher>) -> io::Result<TokioChildProcess> {
    let mut command = CommandWrap::from(command(server, launcher));
    command.wrap(KillOnDrop).wrap(ProcessGroup::leader());
    let builder = TokioChildProcess::builder(command).stderr(Stdio::piped());
    let (child, said) = bound::spawn(move || builder.spawn()).await??;
    if let Some(said) = said {
        tokio::spawn(log(server.name.clone(), said));
    }
    Ok(child)
}

fn command(server: &Server, launcher: Option<&Launcher>) -> Command {
    let mut command = bound::command(server.command.clone().unwrap_or_default(), launcher);
    let names = COMMON.into_iter().chain(server.env.iter().map(String::as_str));
    let environment = names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)));
    command.args(&server.args).env_clear().envs(environment);
    if let Some(folder) = &server.cwd {
        command.current_dir(folder);
    }
    command
}

async fn log(server: String, mut said: ChildStderr) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = said.read(&mut buffer).await {
        for line in String::from_utf8_lossy(&buffer[..count]).lines().filter(|line| !line.trim().is_empty()) {
            info!(server, "{}", line.trim_end());
        }
    }
}
