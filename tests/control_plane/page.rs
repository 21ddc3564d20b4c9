//! Users of the web page: sign-in, permissions and actions, with reviews by the API server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::fleet::Fleet;
use crate::loop_run::fleet;

const RELEASE: &str = "release.pleach.dev/loop-page.web";
/// Key of the cookies, 32 bytes.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The page of a controller.
pub(crate) struct Page {
    pub(crate) address: String,
}

pub(crate) struct Answer {
    status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines();
        let mut headers = lines.filter_map(|line| line.split_once(": "));
        let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}

impl Page {
    pub(crate) fn ask(&self, line: &str, cookie: &str, form: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).unwrap();
        let length = form.len();
        let address = &self.address;
        let request = format!(
            "{line} HTTP/1.1\r\nhost: {address}\r\norigin: http://{address}\r\ncookie: {cookie}\r\n\
             connection: close\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: {length}\r\n\r\n{form}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Signs in with a token, and returns the cookie.
    #[track_caller]
    fn sign_in(&self, token: &str) -> String {
        let answer = self.ask("POST /login", "", &format!("token={token}"));
        assert_eq!(answer.status, 303, "{}", answer.body);
        let cookie = answer.header("set-cookie").unwrap();
        assert!(cookie.contains("HttpOnly; SameSite=Lax"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    }

    fn act(&self, action: &str, cookie: &str, form: &str) -> Answer {
        let line = format!("POST /releases/loop-page/web/{action}");
        self.ask(&line, cookie, form)
    }
}

/// Creates service accounts: ann with all verbs on the release, bob who only sees it, and eve.
fn create_users(fleet: &Fleet) {
    let role = |name: &str, verbs: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: loop-page-{name}}}\n\
             rules: [{{apiGroups: [pleach.dev], resources: [releases], resourceNames: [loop-page.web], verbs: [{verbs}]}}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: loop-page-{name}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: loop-page-{name}}}\n\
             subjects: [{{kind: ServiceAccount, name: {name}, namespace: loop-page}}]\n---\n"
        )
    };
    let account = |name: &str| {
        format!(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: loop-page}}\n---\n"
        )
    };
    let accounts = ["ann", "bob", "eve"].map(account).concat();
    let verbs = "get, sync, suspend, resume, approve";
    let objects = [accounts, role("ann", verbs), role("bob", "get")].concat();
    let file = fleet.file("users.yaml", &objects);
    fleet.kubectl(&["apply", "-f", &file]);
}

fn token(fleet: &Fleet, name: &str) -> String {
    let token = fleet.kubectl(&["create", "token", name, "-n", "loop-page"]);
    token.trim().to_owned()
}

#[test]
fn users_approve_and_suspend_on_the_page_as_far_as_rbac_permits() {
    let fleet = fleet("loop-page", "{interval: 1h, approval: digest}");
    create_users(&fleet);
    let key = fleet.file("cookie-key", KEY);
    let url = fleet.repo.path().to_str().unwrap();
    let text = fleet.configuration_text(url, "");
    let ui = format!("ui: {{listen: '127.0.0.1:0', auth: kubernetes, cookieKeyFile: {key}}}\n");
    let config = fleet.file("page.yaml", &(text + &ui));
    let mut running = fleet.runs_with(&["--config", &config]);
    let address = running.running.until_prints("page: http://");
    let page = Page { address };
    let said = fleet.until_condition("Stalled", "AwaitingApproval");
    let (_, digest) = said.split_once("approval of ").unwrap();
    let digest = digest.split(": ").next().unwrap();
    let approve = format!("digest={digest}");

    let answer = page.ask("POST /login", "", "token=guess");
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert_eq!(answer.header("set-cookie"), None);
    let answer = page.act("approve", "", &approve);
    let expected = "/login?next=%2Freleases%2Floop%2Dpage%2Fweb";
    assert_eq!(answer.header("location"), Some(expected));

    let secret = token(&fleet, "ann");
    let ann = page.sign_in(&secret);
    let bob = page.sign_in(&token(&fleet, "bob"));
    let eve = page.sign_in(&token(&fleet, "eve"));
    let user = "system:serviceaccount:loop-page:ann";

    // Pages show the release, and the actions, as far as the user is allowed to use them.
    let show = |cookie: &str| page.ask("GET /releases/loop-page/web", cookie, "");
    let form = format!("name=\"digest\" value=\"{digest}\"");
    fleet.until("the form", |_| {
        show(&ann).body.contains(&form).then_some(())
    });
    let shown = show(&bob);
    assert_eq!(shown.status, 200, "{}", shown.body);
    assert!(!shown.body.contains("/approve\""), "{}", shown.body);
    assert_eq!(show(&eve).status, 404);

    // Without a verb nothing is stored.
    let answer = page.act("approve", &eve, &approve);
    assert_eq!(answer.status, 404, "{}", answer.body);
    let answer = page.act("approve", &bob, &approve);
    assert_eq!(answer.status, 403);
    let expected = "system:serviceaccount:loop-page:bob may not approve loop-page.web; needs verb approve on releases.pleach.dev";
    assert!(answer.body.contains(expected), "{}", answer.body);
    // Neither is the approval of another plan.
    let outdated = format!("digest=sha256:{}", "0".repeat(64));
    let answer = page.act("approve", &ann, &outdated);
    assert_eq!(answer.status, 409);
    assert!(answer.body.contains(digest), "{}", answer.body);
    let release = fleet.get(&[RELEASE]).unwrap();
    let annotations = &release["metadata"]["annotations"];
    assert!(annotations["pleach.dev/approved"].is_null(), "{release}");
    assert_eq!(fleet.value(), None);

    // The approval lets the release go, and names the user.
    let answer = page.act("approve", &ann, &approve);
    assert_eq!(
        answer.header("location"),
        Some("/releases/loop-page/web"),
        "{}",
        answer.body
    );
    fleet.until_value("first");
    fleet.until_not("Stalled");
    fleet.until_ready();
    let approved = format!("approved by {user}");
    fleet.run(&["history", "loop-page/web"]).says(&approved);
    let event = format!("approved by {user}: {digest}");
    fleet.until("the Event", |fleet| {
        let events = fleet.kubectl(&["get", "events", "-n", "default", "-o", "json"]);
        events.contains(&event).then_some(())
    });

    // Requests name the user too.
    let answer = page.act("suspend", &ann, "reason=the+database+moves&duration=2h");
    assert_eq!(answer.status, 303, "{}", answer.body);
    let expected = format!("suspended by {user} until ");
    fleet.run(&["status", "loop-page"]).says(&expected);
    assert_eq!(page.act("resume", &bob, "").status, 403);
    assert_eq!(page.act("resume", &ann, "").status, 303);
    let release = fleet.get(&[RELEASE]).unwrap();
    assert!(release["spec"]["suspend"].is_null(), "{release}");
    assert_eq!(page.act("sync", &ann, "").status, 303);

    let audit = page.ask("GET /actions", &ann, "").body;
    assert!(audit.contains(digest) && audit.contains(user), "{audit}");

    // A withdrawn permission counts at once.
    fleet.kubectl(&["delete", "clusterrolebinding", "loop-page-ann"]);
    fleet.until("the refusal", |_| {
        (page.act("sync", &ann, "").status == 404).then_some(())
    });
    let run = running.stopped();
    assert!(
        run.stderr.contains("action on the web page"),
        "{}",
        run.stderr
    );
    for hidden in [secret.as_str(), ann.as_str(), KEY] {
        assert!(!run.stderr.contains(hidden), "{}", run.stderr);
        assert!(!run.stdout.contains(hidden), "{}", run.stdout);
    }
    fleet.kubectl(&["delete", "clusterrole", "loop-page-ann", "loop-page-bob"]);
    fleet.kubectl(&["delete", "clusterrolebinding", "loop-page-bob"]);
}
