//! The demonstration's scenes: what goes wrong elsewhere, played against the proxy.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::HOST;
use reqwest::Client;
use serde_json::Value;

use super::child::{Child, Folder};
use super::upstream::{SLOW, Upstream};

/// How many scenes there are.
pub(super) const COUNT: usize = 6;
/// The host that clients call. It counts when requests are compared, and the proxy that takes over has another port.
const HOST_NAME: &str = "shop.example";
/// The duplicates that come at once.
const CROWD: usize = 50;

/// What was done, what came of it, and what the upstream counted.
#[derive(Debug)]
pub(super) struct Scene {
    what: &'static str,
    answers: String,
    executions: usize,
    /// Whether it ended as the README says.
    pub(super) as_promised: bool,
}

impl Scene {
    /// The table's heading.
    pub(super) fn heading() -> String {
        format!("{:<46} {:<74} {}\n", "what is sent", "what comes back", "executions")
    }

    /// The scene as a row of the table.
    pub(super) fn row(&self) -> String {
        let mark = if self.as_promised { "" } else { "  NOT AS PROMISED" };
        format!("{:<46} {:<74} {}{mark}\n", self.what, self.answers, self.executions)
    }
}

/// An answer, as far as a row shows it.
#[derive(Debug)]
struct Seen {
    status: u16,
    replayed: bool,
    body: Value,
}

impl Seen {
    fn problem(&self) -> &str {
        self.body["type"].as_str().and_then(|t| t.rsplit(':').next()).unwrap_or("")
    }

    fn text(&self) -> String {
        let what = match self.body["charge"].as_str() {
            Some(charge) => charge,
            None => self.problem(),
        };
        format!("{} {what}{}", self.status, if self.replayed { ", replayed" } else { "" })
    }
}

/// The stage.
#[derive(Debug)]
pub(super) struct Scenes {
    upstream: Upstream,
    folder: Folder,
    proxy: Option<Child>,
    client: Client,
}

impl Scenes {
    /// Sets the stage.
    pub(super) fn new(upstream: Upstream, folder: Folder, proxy: Child) -> Result<Scenes> {
        let client = Client::builder()
            .no_proxy()
            .retry(reqwest::retry::never())
            .timeout(Duration::from_secs(60))
            .build()
            .context("cannot make a client")?;
        Ok(Scenes { upstream, folder, proxy: Some(proxy), client })
    }

    /// The proxy that runs now.
    pub(super) fn proxy(&self) -> &Child {
        self.proxy.as_ref().expect("it is replaced at once when it is killed")
    }

    /// Where the upstream listens.
    pub(super) fn upstream_address(&self) -> SocketAddr {
        self.upstream.address()
    }

    /// Plays one scene.
    pub(super) async fn play(&mut self, number: usize) -> Result<Scene> {
        let before = self.upstream.executions();
        let (what, answers, promised_executions, promised) = match number {
            0 => self.first().await?,
            1 => self.repeat().await?,
            2 => self.crowd().await?,
            3 => self.other_request().await?,
            4 => self.late_answer().await?,
            _ => self.killed_owner().await?,
        };
        let executions = self.upstream.executions() - before;
        Ok(Scene { what, answers, executions, as_promised: promised && executions == promised_executions })
    }

    async fn first(&self) -> Result<Played> {
        let seen = self.send("charges", "order-1", 10).await?;
        Ok(("a first request", seen.text(), 1, seen.status == 201 && !seen.replayed))
    }

    async fn repeat(&self) -> Result<Played> {
        let seen = self.send("charges", "order-1", 10).await?;
        Ok(("the same again, after its answer was lost", seen.text(), 0, seen.status == 201 && seen.replayed))
    }

    async fn crowd(&self) -> Result<Played> {
        let requests: Vec<_> = (0..CROWD)
            .map(|_| {
                let request = self.request("charges", "order-2", 10);
                tokio::spawn(async move { see(request).await })
            })
            .collect();
        let mut seen = Vec::with_capacity(CROWD);
        for request in requests {
            seen.push(request.await.context("a client failed")??);
        }
        let same = seen.iter().all(|s| s.status == 201 && s.body == seen[0].body);
        let text =
            format!("{} times {} {}", seen.len(), seen[0].status, seen[0].body["charge"].as_str().unwrap_or("?"));
        Ok(("fifty equal requests at once", text, 1, same))
    }

    async fn other_request(&self) -> Result<Played> {
        let seen = self.send("charges", "order-1", 20).await?;
        Ok(("another amount under a used key", seen.text(), 0, seen.status == 422 && seen.problem() == "key-reused"))
    }

    async fn late_answer(&self) -> Result<Played> {
        let first = self.send("slow-charges", "order-3", 10).await?;
        let again = self.send("slow-charges", "order-3", 10).await;
        // The second caller may have to wait longer than its patience as well; the third comes after the answer.
        let mut again = again?;
        if again.status != 201 {
            tokio::time::sleep(SLOW).await;
            again = self.send("slow-charges", "order-3", 10).await?;
        }
        let promised = first.status == 504 && first.problem() == "outcome-unknown" && again.status == 201;
        let text = format!("{}; sent again: {}", first.text(), again.text());
        Ok(("an upstream slower than the caller's patience", text, 1, promised))
    }

    async fn killed_owner(&mut self) -> Result<Played> {
        let before = self.upstream.executions();
        let request = self.request("slow-charges", "order-4", 10);
        let first = tokio::spawn(see(request));
        // The kill must fall between the charge and its answer. A request that ended without one shows in the table.
        while self.upstream.executions() == before && !first.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let proxy = self.proxy.take().expect("it is replaced at once when it is killed");
        proxy.kill().await?;
        self.proxy = Some(Child::start(&self.folder, self.upstream.address()).await?);
        let first = match first.await.context("the client failed")? {
            Ok(seen) => seen.text(),
            Err(_) => "connection lost".to_owned(),
        };
        let again = self.send_until_ready("slow-charges", "order-4", 10).await?;
        let promised = again.status == 409 && again.problem() == "outcome-unknown";
        let text = format!("{first}; sent again: {}, held for a person", again.text());
        Ok(("the proxy killed (-9) after the charge", text, 1, promised))
    }

    fn request(&self, path: &str, key: &str, amount: u32) -> reqwest::RequestBuilder {
        self.client
            .post(format!("http://{}/{path}", self.proxy().address()))
            .header(HOST, HOST_NAME)
            .header("Idempotency-Key", format!("\"{key}\""))
            .json(&serde_json::json!({ "amount": amount }))
    }

    async fn send(&self, path: &str, key: &str, amount: u32) -> Result<Seen> {
        see(self.request(path, key, amount)).await
    }

    /// A proxy that has just started refuses with 503 until its store is open.
    async fn send_until_ready(&self, path: &str, key: &str, amount: u32) -> Result<Seen> {
        for _ in 0..200 {
            let seen = self.send(path, key, amount).await?;
            if seen.status != 503 {
                return Ok(seen);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        anyhow::bail!("the restarted proxy never became ready")
    }
}

/// What is sent, what came back, how often the upstream has to run it, and whether the answers are as promised.
type Played = (&'static str, String, usize, bool);

async fn see(request: reqwest::RequestBuilder) -> Result<Seen> {
    let response = request.send().await.context("no answer from the proxy")?;
    let status = response.status().as_u16();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = response.json().await.context("an answer that is not JSON")?;
    Ok(Seen { status, replayed, body })
}
