//! The web page of the controller in a real browser.

mod replicas;
#[cfg(feature = "oidc")]
mod users;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use pleach_controller::server::ui;
use pleach_controller::server::ui::security::{Security, secured};
use pleach_model::object::ObjectId;
use pleach_page::board::Board;
use pleach_page::facts::ObjectRow;
use pleach_page::viewer::Viewer;
use pleach_planner::plan::Action;
use pleach_reconciler::config::{Page, SignIn};
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_testkit::browser::{Browser, Window};
use tokio::sync::watch;

use crate::page_fixtures::{every_state, facts, load, name, outcome};

/// A desk and a phone, with light and dark colors.
const WINDOWS: [Window; 4] = [
    window(1280, false),
    window(1280, true),
    window(360, false),
    window(360, true),
];

const fn window(width: u32, is_dark: bool) -> Window {
    Window {
        width,
        height: 900,
        is_dark,
    }
}

/// Served page, whose board can be changed.
struct Site {
    board: watch::Sender<Arc<Board>>,
    address: SocketAddr,
}

impl Site {
    async fn start(board: Board) -> Self {
        let (board, shown) = watch::channel(Arc::new(board));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = Page {
            listen: address,
            sign_in: SignIn::Off,
            url: None,
            tls: None,
            behind_proxy: false,
        };
        let pages = ui::pages(shown, Arc::default()).layer(Extension(Viewer::read_only()));
        let router = secured(ui::files().merge(pages), Security::of(&page));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { board, address }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Returns the addresses of one page of each kind.
fn pages(environment: &str, release: &str) -> Vec<String> {
    let release = format!("/releases/{environment}/{release}");
    let tabs = ["", "/plan", "/diff", "/objects", "/history", "/graph"];
    let mut pages = vec!["/".to_owned(), "/waiting".to_owned()];
    pages.push(format!("/environments/{environment}"));
    pages.extend(tabs.map(|tab| format!("{release}{tab}")));
    pages
}

/// Fails if a page has a violation, a message on the console, or a part that does not fit.
async fn check(browser: &Browser, address: &str, window: Window) {
    let console = browser.console().await.unwrap();
    assert!(console.is_empty(), "{address}: {console:#?}");
    let violations = browser.violations().await.unwrap();
    assert!(
        violations.is_empty(),
        "{address} {window:?}: {violations:#?}"
    );
    assert!(!browser.overflows().await.unwrap(), "{address} {window:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_accessible_on_a_desk_and_a_phone() {
    let site = Site::start(every_state()).await;
    let browser = Browser::start().await.unwrap();
    for window in WINDOWS {
        browser.resize(window).await.unwrap();
        for page in pages("production", "syncing") {
            browser.open(&site.url(&page)).await.unwrap();
            check(&browser, &page, window).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_works_without_scripts() {
    let site = Site::start(every_state()).await;
    let browser = Browser::start().await.unwrap();
    browser.allow_scripts(false).await.unwrap();
    for page in pages("production", "syncing") {
        browser.open(&site.url(&page)).await.unwrap();
        let text = browser.text().await.unwrap();
        assert!(
            text.contains("production") || page == "/waiting",
            "{page}: {text}"
        );
    }
    // Links and filters are plain HTML.
    browser.open(&site.url("/")).await.unwrap();
    browser.tab_to("syncing").await.unwrap();
    browser.types("\u{E007}").await.unwrap();
    assert!(
        browser
            .url()
            .await
            .unwrap()
            .ends_with("/releases/production/syncing")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_visible_at_once_and_the_focus_stays() {
    let site = Site::start(every_state()).await;
    let browser = Browser::start().await.unwrap();
    browser.open(&site.url("/")).await.unwrap();
    browser.until("live").await.unwrap();
    browser.tab_to("syncing").await.unwrap();
    let start = Instant::now();
    site.board.send_modify(|board| {
        let board = Arc::make_mut(board);
        let message = "the change that happens now";
        let failed = outcome(ReconcileOutcome::Failed, message);
        board.finished(&name("production", "syncing"), failed);
    });
    browser.until("the change that happens now").await.unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(browser.focused().await.unwrap(), "syncing");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_attackers_are_text() {
    let hostile = [
        "<img src=x onerror=\"document.title='broken'\">",
        "javascript:document.title='broken'",
        "\u{202e}txt.exe\u{200b}",
        "&lt;b&gt;{{ 7777 * 3 }}",
    ];
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let web = name("production", "web");
    let mut all = facts(&web, &[]);
    all.bundle = hostile[0].to_owned();
    all.degraded = Some(hostile[1].to_owned());
    all.active = hostile.map(str::to_owned).into();
    let rows = hostile.iter().map(|text| ObjectRow {
        object: ObjectId::new(text, text, Some(text), text),
        action: Action::Unchanged,
        reason: Some((*text).into()),
        writer: Some((*text).into()),
        is_drift: true,
    });
    all.objects = rows.collect();
    board.planned(&web, &Arc::new(all));
    board.finished(&web, outcome(ReconcileOutcome::Failed, &hostile.join(" ")));
    let site = Site::start(board).await;
    let browser = Browser::start().await.unwrap();
    let phone = window(360, false);
    browser.resize(phone).await.unwrap();
    for page in pages("production", "web") {
        browser.open(&site.url(&page)).await.unwrap();
        check(&browser, &page, phone).await;
        let title = browser.run("return document.title").await.unwrap();
        assert!(!title.as_str().unwrap().contains("broken"), "{page}");
        let images = browser.run("return document.images.length").await.unwrap();
        assert_eq!(images, 0, "{page}");
        let text = browser.text().await.unwrap();
        assert!(!text.contains(['\u{202e}', '\u{200b}']), "{page}: {text}");
        assert!(!text.contains("23331"), "{page}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_objects_are_shown_and_filtered_fast() {
    let mut board = Board::default();
    load(&mut board, "production", &["web"]);
    let web = name("production", "web");
    let mut all = facts(&web, &[]);
    let row = |number: usize| ObjectRow {
        object: ObjectId::new(
            "",
            "ConfigMap",
            Some("shop"),
            &format!("object-{number:05}"),
        ),
        action: Action::Unchanged,
        reason: None,
        writer: None,
        is_drift: false,
    };
    all.objects = (0..10_000).map(row).collect();
    board.planned(&web, &Arc::new(all));
    let site = Site::start(board).await;
    let browser = Browser::start().await.unwrap();
    let objects = site.url("/releases/production/web/objects");
    for (address, shown) in [
        (objects.clone(), "object-00000"),
        (format!("{objects}?q=object-09999"), "object-09999"),
    ] {
        // Other tests run at the same time. The fastest of several attempts counts.
        let mut fastest = f64::INFINITY;
        for _ in 0..5 {
            browser.open(&address).await.unwrap();
            browser.until(shown).await.unwrap();
            let paint = "return performance.getEntriesByType('paint')[0].startTime";
            fastest = fastest.min(browser.run(paint).await.unwrap().as_f64().unwrap());
        }
        assert!(fastest < 1_000.0, "{address}: {fastest} ms");
    }
}
