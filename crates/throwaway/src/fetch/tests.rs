use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

/// Behavior of the server for one request.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The whole file, or the requested part.
    Whole,
    /// A number of bytes, then the end of the connection.
    Cut(usize),
    /// The whole file, whatever was requested.
    WithoutRange,
    /// An error status.
    Status(u16),
    /// Nothing.
    Silence,
}

/// A server of one file, and the ranges that clients requested.
struct Server {
    url: String,
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// The last answer is repeated.
    fn start(content: Vec<u8>, answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ranges);
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let range = requested(&stream);
                seen.lock().unwrap().push(range.clone());
                match answers[number.min(answers.len() - 1)] {
                    Answer::Silence => kept.push(stream),
                    answer => drop(stream.write_all(&response(answer, &content, &range))),
                }
            }
        });
        Self { url, ranges }
    }

    fn ranges(&self) -> Vec<String> {
        self.ranges.lock().unwrap().clone()
    }
}

/// Reads a request. Returns its range, or an empty text.
fn requested(stream: &TcpStream) -> String {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let lines = lines.map(Result::unwrap).take_while(|it| !it.is_empty());
    lines
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            (name.eq_ignore_ascii_case("range")).then(|| value.to_owned())
        })
        .last()
        .unwrap_or_default()
}

fn response(answer: Answer, content: &[u8], range: &str) -> Vec<u8> {
    let from = range.trim_start_matches("bytes=").trim_end_matches('-');
    let from: Option<usize> = from.parse().ok();
    let (status, headers, start) = match (answer, from) {
        (Answer::Status(status), _) => return head(status, "", 0),
        (Answer::WithoutRange, _) | (_, None) => (200, String::new(), 0),
        (_, Some(from)) if from >= content.len() => return head(416, "", 0),
        (_, Some(from)) => {
            let all = content.len();
            let range = format!("Content-Range: bytes {from}-{}/{all}\r\n", all - 1);
            (206, range, from)
        }
    };
    let body = &content[start..];
    let mut response = head(status, &headers, body.len());
    let length = match answer {
        Answer::Cut(length) => length.min(body.len()),
        _ => body.len(),
    };
    response.extend_from_slice(&body[..length]);
    response
}

fn head(status: u16, headers: &str, length: usize) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// Returns an archive with a file of each name, which contains its name.
fn archive(names: &[&str]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for name in names {
        let mut header = tar::Header::new_gnu();
        header.set_size(name.len() as u64);
        header.set_mode(0o644);
        archive
            .append_data(&mut header, name, name.as_bytes())
            .unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

/// Returns a pin of a file, with the SHA-256 or SHA-512 of a content.
fn pin(
    url: &'static str,
    content: &[u8],
    programs: &[&'static str],
    is_long: bool,
) -> Pin<'static> {
    let sum = if is_long {
        hex(&<Sha512 as sha2::Digest>::digest(content))
    } else {
        hex(&<Sha256 as sha2::Digest>::digest(content))
    };
    Pin {
        sum: sum.leak(),
        url,
        programs: programs.to_vec(),
    }
}

async fn fetched(
    pin: &Pin<'static>,
    folder: &Path,
    server: &Server,
) -> (Result<(), String>, Vec<u64>) {
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut seen = Vec::new();
    let mut progress = |now: Progress<'_>| seen.push(now.done);
    let result = fetch(
        std::slice::from_ref(pin),
        folder,
        Some(&server.url),
        &mut progress,
    )
    .await;
    (result.map_err(|error| error.to_string()), seen)
}

/// Returns the names of the files in a folder, without the lock.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .filter(|it| it != ".lock")
        .collect();
    names.sort_unstable();
    names
}

const ARCHIVE: &str = "https://example.org/v1/server.tar.gz";

#[tokio::test]
async fn programs_of_an_archive_are_downloaded_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new");
    let content = archive(&["k/bin/one", "k/bin/one.tar", "k/two", "k/three"]);
    let server = Server::start(content.clone(), vec![Answer::Whole]);
    let pin = pin(ARCHIVE, &content, &["two", "one"], true);

    let (result, seen) = fetched(&pin, &folder, &server).await;

    assert_eq!(result, Ok(()));
    assert_eq!(seen.last(), Some(&(content.len() as u64)));
    assert_eq!(files(&folder), ["one", "one.sha256", "two", "two.sha256"]);
    let program = folder.join("one");
    assert_eq!(fs::read_to_string(&program).unwrap(), "k/bin/one");
    let mode = program.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    // A second time nothing is requested.
    assert_eq!(fetched(&pin, &folder, &server).await.0, Ok(()));
    assert_eq!(server.ranges().len(), 1);
}

#[tokio::test]
async fn a_cut_download_is_continued() {
    for (answers, ranges) in [
        // In the same call.
        (
            vec![Answer::Cut(4), Answer::Cut(2), Answer::Whole],
            vec!["", "bytes=4-", "bytes=6-"],
        ),
        // By a server that knows no ranges.
        (
            vec![Answer::Cut(4), Answer::WithoutRange],
            vec!["", "bytes=4-"],
        ),
        (vec![Answer::Status(503), Answer::Whole], vec!["", ""]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let content = b"a program".to_vec();
        let server = Server::start(content.clone(), answers);
        let pin = pin("https://example.org/kwok", &content, &["kwok"], false);
        assert_eq!(fetched(&pin, folder.path(), &server).await.0, Ok(()));
        assert_eq!(server.ranges(), ranges);
        assert_eq!(fs::read(folder.path().join("kwok")).unwrap(), content);
    }
}

#[tokio::test]
async fn a_download_that_ended_early_stays_for_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let content = b"a program".to_vec();
    let answers = vec![
        Answer::Cut(1),
        Answer::Cut(1),
        Answer::Cut(1),
        Answer::Whole,
    ];
    let server = Server::start(content.clone(), answers);
    let pin = pin("https://example.org/kwok", &content, &["kwok"], false);

    let (result, _) = fetched(&pin, folder.path(), &server).await;
    let error = result.unwrap_err();
    assert!(
        error.starts_with("failed to download http://127.0.0.1:"),
        "{error}"
    );
    assert!(error.ends_with("/kwok"), "{error}");
    assert_eq!(files(folder.path()).len(), 1);

    assert_eq!(fetched(&pin, folder.path(), &server).await.0, Ok(()));
    assert_eq!(server.ranges().last().unwrap(), "bytes=3-");
    assert_eq!(files(folder.path()), ["kwok", "kwok.sha256"]);
}

#[tokio::test]
async fn another_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(b"another".to_vec(), vec![Answer::Whole]);
    let pin = pin("https://example.org/kwok", b"a program", &["kwok"], false);
    let (result, _) = fetched(&pin, folder.path(), &server).await;
    let error = result.unwrap_err();
    assert!(
        error.contains("differs from its pinned checksum"),
        "{error}"
    );
    assert_eq!(files(folder.path()), [] as [&str; 0]);
}

#[tokio::test]
async fn refused_and_incomplete_files_are_errors() {
    let content = archive(&["k/one"]);
    for (programs, answer, expected) in [
        (&["one"], Answer::Status(404), "the server answered 404"),
        (&["two"], Answer::Whole, "contains no program two"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(content.clone(), vec![answer]);
        let pin = pin(ARCHIVE, &content, programs, false);
        let (result, _) = fetched(&pin, folder.path(), &server).await;
        let error = result.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!files(folder.path()).iter().any(|it| it == programs[0]));
    }
}

/// The clock jumps to the next time-out while nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_silent_server_ends_the_download() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new(), vec![Answer::Silence]);
    let pin = pin("https://example.org/kwok", b"a program", &["kwok"], false);
    let started = tokio::time::Instant::now();
    let (result, _) = fetched(&pin, folder.path(), &server).await;
    assert!(result.unwrap_err().starts_with("failed to download"));
    assert!(started.elapsed() <= SILENCE * ATTEMPTS + CONNECT);
}

#[tokio::test]
async fn downloads_into_one_folder_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let content = b"a program".to_vec();
    let server = Server::start(content.clone(), vec![Answer::Whole]);
    let pin = pin("https://example.org/kwok", &content, &["kwok"], false);
    let (first, second) = tokio::join!(
        fetched(&pin, folder.path(), &server),
        fetched(&pin, folder.path(), &server)
    );
    assert_eq!((first.0, second.0), (Ok(()), Ok(())));
    assert_eq!(server.ranges(), [""]);
}
