//! Opens the page of a run in a browser.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use millrace_protocol::ids::RunId;

use crate::view::print_stderr_line;

/// The time in which the gateway of a cluster that has just started must serve its pages.
const START_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// Prints the address of a run's page, and opens it in a browser if there is one.
pub async fn open_run_page(api_url_file: &Path, run: &RunId) {
    let deadline = Instant::now() + START_LIMIT;
    let url = loop {
        match std::fs::read_to_string(api_url_file) {
            Ok(url) => break format!("{}/runs/{run}", url.trim()),
            Err(_) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
            Err(_) => {
                return print_stderr_line(
                    "millrace: warning: this cluster serves no pages; stop it, and start it with `millrace up --api`",
                );
            }
        }
    };
    note!("the run is on {url}");
    if let Some(program) = browser_program(&|name| std::env::var(name).ok())
        && let Err(error) = start_browser(&program, &url)
    {
        note!("warning: cannot start the browser {program:?}: {error}");
    }
}

/// The program that opens a page: `BROWSER`, or that of the desktop; `None` where there is none.
fn browser_program(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    if is_set("BROWSER") {
        return variable("BROWSER");
    }
    if cfg!(target_os = "macos") {
        return Some("open".into());
    }
    (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")).then(|| "xdg-open".into())
}

/// Starts the program, and does not wait for its end.
fn start_browser(program: &str, url: &str) -> std::io::Result<()> {
    let mut child = Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // Its end is of no interest, but must be collected.
    std::thread::spawn(move || child.wait());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_of_the_user_is_taken_before_that_of_the_desktop() {
        let of = |variables: &'static [(&str, &str)]| {
            browser_program(&move |name| {
                variables.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("BROWSER", "firefox"), ("DISPLAY", ":0")]).as_deref(), Some("firefox"));
        if cfg!(target_os = "linux") {
            assert_eq!(of(&[("DISPLAY", ":0")]).as_deref(), Some("xdg-open"));
            assert_eq!(of(&[("BROWSER", ""), ("DISPLAY", "")]), None);
        }
    }
}
