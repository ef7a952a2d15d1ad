//! A real browser: Debian's `chromium` and `chromium-driver`.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use super::http::Request;

/// The time in which a page must reach a state.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// `true` if a browser and its driver are installed; prints a message if not.
pub fn has_browser() -> bool {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let is_there = has("chromium") && has("chromedriver");
    if !is_there {
        println!("skipped: no browser; install the packages chromium and chromium-driver");
    }
    is_there
}

/// A browser with one window.
pub struct Browser {
    /// The window.
    pub client: Client,
    driver: Child,
    address: SocketAddr,
    base: String,
}

impl Browser {
    /// Starts a browser for the pages of a gateway.
    pub async fn start(gateway: SocketAddr) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let driver = Command::new("chromedriver")
            .args([format!("--port={port}"), "--allowed-ips=127.0.0.1".into()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                     "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1400,900"],
        });
        let capabilities =
            json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object") };
        let url = format!("http://127.0.0.1:{port}");
        let client = wait_for_value(TIMEOUT, "the browser", async || {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities.clone()).connect(&url).await.ok()
        })
        .await;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Self { client, driver, address, base: format!("http://{gateway}") }
    }

    /// Opens a page.
    pub async fn open(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap();
    }

    /// Waits until an element that a selector names has this text.
    pub async fn wait_for_text(&self, selector: &str, text: &str) {
        let script = "return [...document.querySelectorAll(arguments[0])].some((one) => one.textContent.includes(arguments[1]))";
        let is_there = async || {
            let found = self.client.execute(script, vec![json!(selector), json!(text)]).await;
            found.ok().filter(|found| found == &json!(true))
        };
        if tokio::time::timeout(TIMEOUT, wait_for_value(TIMEOUT * 2, "the text", is_there)).await.is_err() {
            let page = self.evaluate("return document.body.innerText").await;
            panic!(
                "no {selector:?} with {text:?} on {}:\n{}",
                self.path().await,
                page.as_str().unwrap_or("")
            );
        }
    }

    /// Clicks the first element that a selector names and that has this text.
    pub async fn click(&self, selector: &str, text: &str) {
        self.wait_for_text(selector, text).await;
        let script = "[...document.querySelectorAll(arguments[0])].find((one) => one.textContent.includes(arguments[1])).click()";
        self.client.execute(script, vec![json!(selector), json!(text)]).await.unwrap();
    }

    /// Types into the element that a selector names.
    pub async fn type_into(&self, selector: &str, text: &str) {
        self.client
            .wait()
            .at_most(TIMEOUT)
            .for_element(Locator::Css(selector))
            .await
            .unwrap()
            .send_keys(text)
            .await
            .unwrap();
    }

    /// Sends keys to the element that has the focus.
    pub async fn press(&self, keys: &str) {
        self.client.active_element().await.unwrap().send_keys(keys).await.unwrap();
    }

    /// Runs a script and returns its value.
    pub async fn evaluate(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// The path and the query of the page.
    pub async fn path(&self) -> String {
        let url = self.client.current_url().await.unwrap();
        format!("{}{}", url.path(), url.query().map(|query| format!("?{query}")).unwrap_or_default())
    }

    /// Returns the errors on the console since the last call, violations of the content security policy among them.
    pub async fn console_errors(&self) -> Vec<String> {
        let session = self.client.session_id().await.unwrap().unwrap();
        let request =
            Request::new("POST", format!("/session/{session}/se/log")).json(&json!({ "type": "browser" }));
        let answer = request.send(self.address).await.json();
        let entries = answer["value"].as_array().cloned().unwrap_or_default();
        let errors = entries.into_iter().filter(|entry| entry["level"] == "SEVERE");
        errors.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Keeps a picture in `MILLRACE_SCREENSHOTS`, if that is set.
    pub async fn keep_picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("MILLRACE_SCREENSHOTS").map(PathBuf::from) {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("{name}.png")), self.client.screenshot().await.unwrap())
                .unwrap();
        }
    }

    /// Ends the browser.
    pub async fn close(mut self) {
        drop(self.client.clone().close().await);
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
