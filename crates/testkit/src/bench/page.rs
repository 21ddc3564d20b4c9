//! Benchmark of the page of a controller with many releases: size and time of a view, time until a
//! change is visible, and the cost of readers for the controller.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flate2::{Compression, write::GzEncoder};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::fleet::{ENVIRONMENT, Fleet, Running, ask};
use super::measure;
use super::report::Target;
use crate::audit::AuditLog;
use crate::control_plane::client;

/// Number of views of each page.
const VIEWS: usize = 20;
/// Number of changes to one release.
const CHANGES: usize = 10;
/// Number of clients with an open stream.
const STREAMS: usize = 20;
/// Number of clients that load the overview again and again.
const READERS: u32 = 50;
/// Pause of a reader between two views.
const PAUSE: Duration = Duration::from_secs(2);
/// Number of measured reconciles of all releases, with and without readers each.
const ROUNDS: usize = 5;
/// Number of concurrent requests to the API server.
const REQUESTS: usize = 32;
/// Time-out of each wait.
const LONGEST: Duration = Duration::from_mins(5);
/// Duration after which the controller is idle.
const IDLE: Duration = Duration::from_secs(5);

/// Measures the page with `releases` releases.
pub async fn measure(
    pleach: &Path,
    releases: usize,
    mut report_line: impl FnMut(&str),
) -> anyhow::Result<Vec<Target>> {
    let fleet = Fleet::start(pleach, releases).await?;
    fleet.commit("1h")?;
    let running = fleet.run_with_page(false)?;
    fleet.synced(&running).await?;
    running.stop()?;
    report_line("all releases are in sync; the controller is measured without its page");
    let running = fleet.run_with_page(false)?;
    fleet.synced(&running).await?;
    sleep(IDLE).await;
    let (without, _) = running.process().memory_kib()?;
    running.stop()?;

    report_line("the controller is measured with its page");
    let running = fleet.run_with_page(true)?;
    fleet.synced(&running).await?;
    let streams: Vec<Stream> = (0..STREAMS)
        .map(|_| Stream::open(running.address("page")?, "/"))
        .collect::<anyhow::Result<_>>()?;
    let mut targets = views(&fleet, &running).await?;
    sleep(IDLE).await;
    let (with, _) = running.process().memory_kib()?;
    let more = with.saturating_sub(without);
    targets.push(Target {
        met: more <= 15 * 1024,
        text: format!(
            "memory with {STREAMS} streams: {:.1} MiB more than {:.1} without the page (at most 15)",
            kibibytes(more),
            kibibytes(without)
        ),
    });
    drop(streams);

    let cluster = Cluster {
        releases,
        client: client(fleet.plane.kubeconfig()).await?,
    };
    report_line("changes of one release are followed");
    targets.push(visible(&cluster, &running).await?);
    report_line("all releases are reconciled, with and without readers");
    targets.push(beside_readers(&cluster, &running, &mut report_line).await?);
    running.stop()?;
    Ok(targets)
}

/// Measures views of the pages: time and size of the overview, the size of the static files, and
/// the requests to the API server.
async fn views(fleet: &Fleet, running: &Running) -> anyhow::Result<Vec<Target>> {
    let address = running.address("page")?;
    let release = format!("/releases/{ENVIRONMENT}/app-0");
    let pages = [
        "/".to_owned(),
        format!("/environments/{ENVIRONMENT}"),
        release.clone(),
        format!("{release}/plan"),
        format!("{release}/diff"),
        format!("{release}/objects"),
        format!("{release}/history"),
    ];
    let log = AuditLog::new(fleet.plane.audit_log()).from_here()?;
    let mut overview = Vec::new();
    let mut page = String::new();
    for _ in 0..VIEWS {
        for path in &pages {
            let begun = Instant::now();
            let body = view(address, path)?;
            if path == "/" {
                overview.push(begun.elapsed());
                page = body;
            }
        }
    }
    let requests = log
        .complete(&client(fleet.plane.kubeconfig()).await?)
        .await?;
    let reads = requests.by_agent("pleach/").summary().reads;
    let time = median(overview);
    let compressed = compressed(&page)?;
    let files: usize = [("href=\"", ".css"), ("src=\"", ".js")]
        .into_iter()
        .map(|(before, suffix)| {
            let path = attribute(&page, before, suffix).context("the page has no such file")?;
            Ok(view(address, &path)?.len())
        })
        .sum::<anyhow::Result<usize>>()?;
    Ok(vec![
        Target {
            met: time <= Duration::from_millis(30),
            text: format!("overview: {:.1} ms (at most 30)", milliseconds(time)),
        },
        Target {
            met: page.len() <= 300 * 1024 && compressed <= 40 * 1024,
            text: format!(
                "overview: {} KiB, {} compressed (at most 300 and 40)",
                page.len() / 1024,
                compressed / 1024
            ),
        },
        Target {
            met: files <= 25 * 1024,
            text: format!(
                "style and script: {:.1} KiB (at most 25)",
                kibibytes(u64::try_from(files)?)
            ),
        },
        Target {
            met: reads == 0,
            text: format!(
                "requests to the API server: {reads} for {} views (none)",
                VIEWS * pages.len()
            ),
        },
    ])
}

/// Measures the time from the change of a Release in the cluster to the event of its page.
async fn visible(cluster: &Cluster, running: &Running) -> anyhow::Result<Target> {
    let path = format!("/releases/{ENVIRONMENT}/app-7");
    let stream = Stream::open(running.address("page")?, &path)?;
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let suspension = if number.is_multiple_of(2) {
            json!({"by": "bench", "reason": "bench", "at": Timestamp::now()})
        } else {
            Value::Null
        };
        let begun = Instant::now();
        cluster.patch(7, json!({"suspend": suspension})).await?;
        stream.next()?;
        times.push(begun.elapsed());
        // The controller writes about the change, which changes the page again.
        sleep(IDLE / 5).await;
        stream.skip();
    }
    let time = median(times);
    Ok(Target {
        met: time <= Duration::from_millis(500),
        text: format!(
            "from a change to its event: {:.0} ms (at most 500)",
            milliseconds(time)
        ),
    })
}

/// Compares the mean duration of a reconcile with and without readers.
async fn beside_readers(
    cluster: &Cluster,
    running: &Running,
    report_line: &mut impl FnMut(&str),
) -> anyhow::Result<Target> {
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut views = 0;
    for round in 0..ROUNDS {
        let reconcile = async || {
            sleep(IDLE).await;
            cluster.reconcile(running).await
        };
        let without = reconcile().await?;
        let readers = Readers::start(running.address("page")?);
        let with = reconcile().await?;
        views += readers.stop()?;
        report_line(&format!(
            "round {}: {:.2} ms per reconcile without readers, {:.2} with them",
            round + 1,
            milliseconds(without),
            milliseconds(with)
        ));
        alone.push(without);
        beside.push(with);
    }
    let (alone, beside) = (median(alone), median(beside));
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    Ok(Target {
        met: ratio <= 1.05,
        text: format!(
            "reconcile beside {READERS} readers: {:.2} ms instead of {:.2}, {ratio:.2} times (at most 1.05); {views} views",
            milliseconds(beside),
            milliseconds(alone)
        ),
    })
}

/// The releases in the cluster.
struct Cluster {
    releases: usize,
    client: Client,
}

impl Cluster {
    /// Changes the spec of a Release.
    async fn patch(&self, number: usize, spec: Value) -> anyhow::Result<()> {
        let kind = GroupVersionKind::gvk("pleach.dev", "v1alpha1", "Release");
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        let name = format!("{ENVIRONMENT}.app-{number}");
        let patch = Patch::Merge(json!({"spec": spec}));
        api.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Requests a reconcile of every release. Returns the mean duration of one.
    async fn reconcile(&self, running: &Running) -> anyhow::Result<Duration> {
        let before = Reconciles::of(&running.metrics()?);
        let at = Timestamp::now();
        stream::iter(0..self.releases)
            .map(|number| self.patch(number, json!({"sync": {"at": at, "by": "bench"}})))
            .buffer_unordered(REQUESTS)
            .try_collect::<Vec<()>>()
            .await?;
        let begun = Instant::now();
        loop {
            let now = Reconciles::of(&running.metrics()?);
            let count = now.count - before.count;
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 releases")]
            if count >= self.releases as f64 {
                return Ok(Duration::from_secs_f64(
                    (now.seconds - before.seconds) / count,
                ));
            }
            ensure!(
                begun.elapsed() < LONGEST,
                "{count} reconciles in {LONGEST:?}"
            );
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Number and duration of all reconciles so far.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reconciles {
    count: f64,
    seconds: f64,
}

impl Reconciles {
    fn of(metrics: &str) -> Self {
        let sum = |suffix: &str| -> f64 {
            metrics
                .lines()
                .filter_map(|line| line.strip_prefix("pleach_reconcile_duration_seconds"))
                .filter_map(|line| line.strip_prefix(suffix)?.rsplit_once(' '))
                .filter_map(|(_, value)| value.parse::<f64>().ok())
                .sum()
        };
        Self {
            count: sum("_count{"),
            seconds: sum("_sum{"),
        }
    }
}

/// Clients that load the overview again and again.
struct Readers {
    ends: Arc<AtomicBool>,
    views: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Readers {
    fn start(address: &str) -> Self {
        let (ends, views) = (Arc::default(), Arc::default());
        let threads = (0..READERS)
            .map(|number| {
                let (ends, views) = (Arc::clone(&ends), Arc::clone(&views));
                let address = address.to_owned();
                thread::spawn(move || reload(&address, number, &ends, &views))
            })
            .collect();
        Self {
            ends,
            views,
            threads,
        }
    }

    /// Returns the number of views.
    fn stop(self) -> anyhow::Result<usize> {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok().context("a reader panicked")??;
        }
        Ok(self.views.load(Ordering::Relaxed))
    }
}

fn reload(
    address: &str,
    number: u32,
    ends: &AtomicBool,
    views: &AtomicUsize,
) -> anyhow::Result<()> {
    // Readers do not load at the same moment.
    thread::sleep(PAUSE * number / READERS);
    while !ends.load(Ordering::Relaxed) {
        view(address, "/")?;
        views.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// A stream of events of one page, read by a thread.
struct Stream(Receiver<()>);

impl Stream {
    /// Opens the stream and waits for its first event.
    fn open(address: &str, page: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        let request = format!(
            "GET /events?scope={page} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(stream).lines().map_while(Result::ok);
            let mut events = lines.filter(|line| line.starts_with("event: change"));
            // Ends when nobody receives the events.
            events.all(|_| sender.send(()).is_ok());
        });
        let stream = Self(events);
        stream.next()?;
        Ok(stream)
    }

    /// Waits for the next event.
    fn next(&self) -> anyhow::Result<()> {
        let event = self.0.recv_timeout(LONGEST);
        event.context("no event arrived")
    }

    /// Skips the events that arrived.
    fn skip(&self) {
        while self.0.try_recv().is_ok() {}
    }
}

/// Returns the body of a page.
fn view(address: &str, path: &str) -> anyhow::Result<String> {
    let answer = ask(address, &format!("GET {path} HTTP/1.1\r\n"))?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.200}");
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok(body.to_owned())
}

/// Returns the value of an attribute that ends with a suffix.
fn attribute(page: &str, before: &str, suffix: &str) -> Option<String> {
    page.split(before)
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(value, _)| value.replace("&#x2f;", "/"))
        .find(|value| value.ends_with(suffix))
}

/// Returns the size of a text after gzip.
fn compressed(text: &str) -> anyhow::Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes())?;
    Ok(encoder.finish()?.len())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Divides by 1024.
#[expect(clippy::cast_precision_loss, reason = "far less than 2^52")]
fn kibibytes(number: u64) -> f64 {
    number as f64 / 1024.0
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Formats the machine and one line per target.
pub fn text(releases: usize, targets: &[Target]) -> String {
    let lines: Vec<String> = targets
        .iter()
        .map(|target| format!("  {target}\n"))
        .collect();
    format!(
        "{}\nthe page of {releases} releases\n{}",
        measure::machine(),
        lines.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconciles_of_all_releases_are_added() {
        let metrics = "\
# TYPE pleach_reconcile_duration_seconds histogram
pleach_reconcile_duration_seconds_sum{environment=\"a\",release=\"b c\"} 1.5
pleach_reconcile_duration_seconds_count{environment=\"a\",release=\"b c\"} 3
pleach_reconcile_duration_seconds_sum{environment=\"a\",release=\"d\"} 0.5
pleach_reconcile_duration_seconds_count{environment=\"a\",release=\"d\"} 1
pleach_reconcile_active 7
";
        let expected = Reconciles {
            count: 4.0,
            seconds: 2.0,
        };
        assert_eq!(Reconciles::of(metrics), expected);
    }

    #[test]
    fn files_of_a_page_are_found() {
        let page = r#"<a href="/x"></a><link rel="stylesheet" href="&#x2f;style-1.css"><script src="/live-1.js">"#;
        assert_eq!(attribute(page, "href=\"", ".css").unwrap(), "/style-1.css");
        assert_eq!(attribute(page, "src=\"", ".js").unwrap(), "/live-1.js");
        assert_eq!(attribute(page, "src=\"", ".css"), None);
    }
}
