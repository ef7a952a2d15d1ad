//! A real browser: Debian's `chromium` and `chromium-driver`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::gateway::http::Answer;

/// The timeout of a page state, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(100);
/// The time in which a driver must end its browser.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Keys as the driver names them.
pub mod key {
    /// The start of a field, or the lowest value.
    pub const HOME: &str = "\u{e011}";
    /// The next statement of a report.
    pub const DOWN: &str = "\u{e015}";
    /// Presses a button.
    pub const ENTER: &str = "\u{e007}";
    /// Closes or unpins.
    pub const ESCAPE: &str = "\u{e00c}";
    /// The next field.
    pub const TAB: &str = "\u{e004}";
    /// Sends a form.
    pub const CONTROL_ENTER: &str = "\u{e009}\u{e007}";
    /// Selects the text of a field.
    pub const CONTROL_A: &str = "\u{e009}a";
}

/// `true` if a browser and its driver are installed; prints a message if not.
pub fn has_browser() -> bool {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let is_there = has("chromium") && has("chromedriver");
    if !is_there {
        println!("skipped: no browser; install the packages chromium and chromium-driver");
    }
    is_there
}

/// A browser with one window. Dropping it ends the browser.
pub struct Browser {
    /// The window.
    pub client: Client,
    driver: Child,
    address: SocketAddr,
    session: String,
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
                     "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage",
                     "--enable-precise-memory-info", "--window-size=1400,900"],
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
        let session = client.session_id().await.unwrap().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Self { client, driver, address, session, base: format!("http://{gateway}") }
    }

    /// Opens a page.
    pub async fn open(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap();
    }

    /// Waits until an element that a selector names has this text.
    pub async fn wait_for_text(&self, selector: &str, text: &str) {
        let script = "return [...document.querySelectorAll(arguments[0])].some((one) => one.textContent.includes(arguments[1]))";
        self.wait_until(script, vec![json!(selector), json!(text)]).await;
    }

    /// Waits until no part of the page is loading.
    pub async fn wait_until_read(&self) {
        self.wait_until("return document.querySelector('.loading') === null", Vec::new()).await;
    }

    /// Waits until the element with the focus fits a selector.
    pub async fn wait_for_focus(&self, selector: &str) {
        self.wait_until("return document.activeElement.matches(arguments[0])", vec![json!(selector)]).await;
    }

    /// Records the banners of the page from now on: one of them is shown for some seconds only.
    pub async fn record_banners(&self) {
        let script = "window.banners = []; new MutationObserver(() => { const text = document.querySelector('.banner')?.textContent ?? ''; \
                      if (text && text !== banners.at(-1)) banners.push(text); }).observe(document.body, { subtree: true, childList: true, characterData: true });";
        self.evaluate(script).await;
    }

    /// Waits until a banner has this text, and forgets the banners up to that one.
    pub async fn wait_for_banner(&self, text: &str) {
        let script = "const at = banners.findIndex((one) => one.includes(arguments[0])); if (at < 0) return false; banners.splice(0, at + 1); return true;";
        self.wait_until(script, vec![json!(text)]).await;
    }

    async fn wait_until(&self, script: &str, arguments: Vec<Value>) {
        let is_so = async || {
            let value = self.client.execute(script, arguments.clone()).await;
            value.ok().filter(|value| value == &json!(true))
        };
        if tokio::time::timeout(TIMEOUT, wait_for_value(TIMEOUT * 2, "the page", is_so)).await.is_err() {
            let page = self.evaluate("return document.body.innerText").await;
            let (path, page) = (self.path().await, page.as_str().unwrap_or_default().to_owned());
            panic!("{path} never fulfils {script} with {arguments:?}:\n{page}");
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
        let wait = self.client.wait().at_most(TIMEOUT);
        wait.for_element(Locator::Css(selector)).await.unwrap().send_keys(text).await.unwrap();
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

    /// Sends a command of the browser's development protocol.
    pub async fn command(&self, name: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", &json!({ "cmd": name, "params": parameters })).await
    }

    /// Makes the browser prefer a colour scheme, `light` or `dark`, as its system would.
    pub async fn prefer_scheme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }, { "name": "prefers-reduced-motion", "value": "reduce" }]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Sets the size of the page; a window can't be narrower than 500 pixels.
    pub async fn set_size(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Returns the errors on the console since the last call, violations of the content security policy among them.
    pub async fn console_errors(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({ "type": "browser" })).await;
        let entries = entries.as_array().cloned().unwrap_or_default();
        let errors = entries.into_iter().filter(|entry| entry["level"] == "SEVERE");
        errors.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let (body, session, address) = (body.to_string(), &self.session, self.address);
        // Without `Connection: close`, which the driver does not answer.
        let request = format!(
            "POST /session/{session}/{path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let exchange = async {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut bytes = Vec::new();
            // The driver keeps the connection open.
            while stream.read_buf(&mut bytes).await.unwrap() > 0 {
                let answer = Answer::parse(&bytes);
                let value = answer.and_then(|answer| serde_json::from_slice::<Value>(&answer.body).ok());
                if let Some(value) = value {
                    return value["value"].clone();
                }
            }
            panic!("the driver has closed the connection of {path}");
        };
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| panic!("no answer to {path}"))
    }

    /// Keeps a picture in a folder.
    pub async fn keep_picture(&self, folder: &Path, name: &str) {
        std::fs::create_dir_all(folder).unwrap();
        let picture = self.command("Page.captureScreenshot", json!({ "format": "png" })).await;
        let picture = picture["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// Asks the driver to end the browser, which would outlive it.
    fn end_session(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&self.address, END_TIMEOUT)?;
        stream.set_read_timeout(Some(END_TIMEOUT))?;
        let (session, address) = (&self.session, self.address);
        write!(stream, "DELETE /session/{session} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
        stream.read_exact(&mut [0; 1])
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.end_session());
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
