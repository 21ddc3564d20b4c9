//! A real browser: headless Chromium, driven by `chromedriver` over
//! [WebDriver](https://www.w3.org/TR/webdriver2/) and the `DevTools` protocol.
#![expect(
    clippy::disallowed_methods,
    reason = "starts a program of the system, with a folder of its own"
)]

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// Limit of one command.
const COMMAND: Duration = Duration::from_secs(30);
/// Limit of [`Browser::until`].
const WAIT: Duration = Duration::from_mins(1);
/// Poll interval of [`Browser::until`].
const POLL: Duration = Duration::from_millis(50);
/// Key of an element reference, from the `WebDriver` standard.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Source of [axe-core](https://github.com/dequelabs/axe-core) 4.14.1, which finds violations of
/// accessibility guidelines.
const AXE: &str = include_str!("browser/axe.min.js");

/// Size and colors of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Width of the page in pixels.
    pub width: u32,
    /// Height of the visible part in pixels.
    pub height: u32,
    /// Whether the user prefers dark colors.
    pub is_dark: bool,
}

/// Browser with one window. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    client: Client<HttpConnector, Full<Bytes>>,
    /// Address of the session.
    session: String,
    /// Home of the driver, with the profile.
    folder: tempfile::TempDir,
}

impl Browser {
    /// Starts `chromedriver` on a free port, and Chromium with an empty profile.
    pub async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("pleach-web-").tempdir()?;
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", folder.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("there is no chromedriver; `make check-tools` names its package")?;
        let port = port_of(&mut driver)?;
        let mut browser = Self {
            driver,
            client: Client::builder(TokioExecutor::new()).build_http(),
            session: format!("http://127.0.0.1:{port}/session"),
            folder,
        };
        let profile = browser.folder.path().display();
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "acceptInsecureCerts": true,
            "goog:chromeOptions": {"args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                format!("--user-data-dir={profile}/profile"),
            ]},
        }}});
        let created = browser.send(Method::POST, "", Some(capabilities)).await?;
        let id = created["sessionId"].as_str().context("no session")?;
        browser.session = format!("{}/{id}", browser.session);
        Ok(browser)
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) -> anyhow::Result<()> {
        self.post("/url", json!({ "url": url })).await?;
        Ok(())
    }

    /// Returns the address of the page.
    pub async fn url(&self) -> anyhow::Result<String> {
        let url = self.send(Method::GET, "/url", None).await?;
        Ok(url.as_str().unwrap_or_default().to_owned())
    }

    /// Sets size and colors of the window.
    pub async fn resize(&self, window: Window) -> anyhow::Result<()> {
        let Window {
            width,
            height,
            is_dark,
        } = window;
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size)
            .await?;
        let scheme = if is_dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// Permits or forbids the scripts of pages.
    pub async fn allow_scripts(&self, is_allowed: bool) -> anyhow::Result<()> {
        let value = json!({ "value": !is_allowed });
        self.devtools("Emulation.setScriptExecutionDisabled", value)
            .await?;
        Ok(())
    }

    /// Runs the body of a function in the page, and returns its result.
    pub async fn run(&self, body: &str) -> anyhow::Result<Value> {
        self.post("/execute/sync", json!({"script": body, "args": []}))
            .await
    }

    /// Returns the visible text of the page.
    pub async fn text(&self) -> anyhow::Result<String> {
        let body = self.element("body").await?;
        let path = format!("/element/{body}/text");
        let text = self.send(Method::GET, &path, None).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the page shows a text. Fails with the text that it shows instead.
    pub async fn until(&self, wanted: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            // The page can change while it is read.
            let text = self.text().await.unwrap_or_default();
            if text.contains(wanted) {
                return Ok(());
            }
            ensure!(start.elapsed() < WAIT, "no {wanted:?} in:\n{text}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Types keys into the focused element. [`keys`] has the special ones.
    pub async fn types(&self, text: &str) -> anyhow::Result<()> {
        let actions: Vec<Value> = text
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|what| json!({"type": what, "value": key})))
            .collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.post("/actions", json!({ "actions": [keyboard] }))
            .await?;
        Ok(())
    }

    /// Moves the focus with the Tab key until an element with this accessible name has it.
    pub async fn tab_to(&self, name: &str) -> anyhow::Result<()> {
        let mut passed = Vec::new();
        for _ in 0..200 {
            self.types(&keys::TAB.to_string()).await?;
            let focused = self.focused().await?;
            if focused == name {
                return Ok(());
            }
            passed.push(focused);
        }
        bail!("the Tab key does not reach {name:?}, but {passed:?}");
    }

    /// Returns the accessible name of the focused element.
    pub async fn focused(&self) -> anyhow::Result<String> {
        let element = self.send(Method::GET, "/element/active", None).await?;
        let id = element[ELEMENT].as_str().context("nothing has the focus")?;
        let path = format!("/element/{id}/computedlabel");
        let label = self.send(Method::GET, &path, None).await?;
        Ok(label.as_str().unwrap_or_default().to_owned())
    }

    /// Clicks on the first element of a CSS selector.
    pub async fn click(&self, selector: &str) -> anyhow::Result<()> {
        let id = self.element(selector).await?;
        self.post(&format!("/element/{id}/click"), json!({}))
            .await?;
        Ok(())
    }

    /// Returns messages of the console since the last call, which include reports about the content
    /// security policy. Pages of the browser itself are left out.
    pub async fn console(&self) -> anyhow::Result<Vec<String>> {
        let lines = self.post("/se/log", json!({"type": "browser"})).await?;
        let lines = lines.as_array().into_iter().flatten();
        Ok(lines
            .map(|line| line["message"].as_str().unwrap_or_default().to_owned())
            .filter(|message| !message.starts_with("chrome://"))
            .collect())
    }

    /// Returns whether a part of the page is wider than the window.
    pub async fn overflows(&self) -> anyhow::Result<bool> {
        let root =
            "const root = document.scrollingElement; return root.scrollWidth > root.clientWidth";
        Ok(self.run(root).await? == json!(true))
    }

    /// Checks the page with axe. Returns a line per violation.
    pub async fn violations(&self) -> anyhow::Result<Vec<String>> {
        if self.run("return typeof axe").await? != json!("object") {
            self.run(AXE).await?;
        }
        let run = "const done = arguments[arguments.length - 1]; \
            axe.run().then((all) => done(all.violations.flatMap((rule) => rule.nodes.map( \
            (node) => `${rule.id}: ${rule.help}: ${node.html} ${node.failureSummary}`))), \
            (error) => done([String(error)]));";
        let found = self
            .post("/execute/async", json!({"script": run, "args": []}))
            .await?;
        let found = found.as_array().context("axe gave no list")?.iter();
        Ok(found
            .map(|line| line.as_str().unwrap_or_default().to_owned())
            .collect())
    }

    /// Takes a picture of the window, as PNG.
    pub async fn screenshot(&self) -> anyhow::Result<Vec<u8>> {
        let picture = self.send(Method::GET, "/screenshot", None).await?;
        let text = picture.as_str().context("no picture")?;
        Ok(BASE64_STANDARD.decode(text)?)
    }

    /// Writes a picture of the window into a file.
    pub async fn save_screenshot(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, self.screenshot().await?)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    async fn element(&self, selector: &str) -> anyhow::Result<String> {
        let query = json!({"using": "css selector", "value": selector});
        let element = self.post("/element", query).await?;
        let id = element[ELEMENT].as_str();
        Ok(id.with_context(|| format!("no {selector}"))?.to_owned())
    }

    async fn devtools(&self, command: &str, params: Value) -> anyhow::Result<Value> {
        let body = json!({"cmd": command, "params": params});
        self.post("/goog/cdp/execute", body).await
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        self.send(Method::POST, path, Some(body)).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.session))
            .header("Content-Type", "application/json")
            .body(Full::new(body))?;
        let answering = async {
            let answer = self.client.request(request).await?;
            anyhow::Ok(answer.into_body().collect().await?.to_bytes())
        };
        let answer = tokio::time::timeout(COMMAND, answering).await;
        let answer = answer.with_context(|| format!("no answer to {path}"))??;
        let mut answer: Value = serde_json::from_slice(&answer)?;
        let value = answer["value"].take();
        if let Some(error) = value["error"].as_str() {
            bail!("{path}: {error}: {}", value["message"]);
        }
        Ok(value)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The group has the processes of the browser, too.
        let group = format!("-{}", self.driver.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).status());
        drop(self.driver.wait());
    }
}

/// Special keys of `WebDriver`.
pub mod keys {
    /// Moves the focus.
    pub const TAB: char = '\u{E004}';
    /// Activates links and submits forms.
    pub const ENTER: char = '\u{E007}';
}

/// Reads the port that a driver prints.
fn port_of(driver: &mut Child) -> anyhow::Result<u16> {
    let output = driver.stdout.take().context("no output")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            return Ok(port.trim_end_matches('.').parse()?);
        }
    }
    bail!("chromedriver did not start")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "data:text/html,<!doctype html><title>Test</title><main><h1>One</h1>\
        <img src='x:'><p style='width:900px'>wide</p><p id=p>no</p><button>Go</button></main>\
        <script>document.getElementById('p').textContent = 'yes'; console.error('broken');</script>";

    #[tokio::test]
    async fn defects_of_a_page_are_found() {
        let browser = Browser::start().await.unwrap();
        let narrow = Window {
            width: 360,
            height: 800,
            is_dark: true,
        };
        browser.resize(narrow).await.unwrap();
        browser.open(PAGE).await.unwrap();
        browser.until("yes").await.unwrap();
        assert!(browser.overflows().await.unwrap());
        let violations = browser.violations().await.unwrap().join("\n");
        assert!(violations.contains("image-alt"), "{violations}");
        let console = browser.console().await.unwrap().join("\n");
        assert!(console.contains("broken"), "{console}");
        browser.tab_to("Go").await.unwrap();
        let dark = "return matchMedia('(prefers-color-scheme: dark)').matches";
        assert_eq!(browser.run(dark).await.unwrap(), json!(true));

        browser.allow_scripts(false).await.unwrap();
        browser.open(PAGE).await.unwrap();
        assert!(browser.text().await.unwrap().contains("no"));
        assert_eq!(&browser.screenshot().await.unwrap()[1..4], b"PNG");
    }
}
