//! Forge of a command, from options or from the CI pipeline that runs it.

mod pipeline;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use pleach_formats::file::ForgeKind;
use pleach_reconciler::config::{ForgeAddress, check_api};

use self::pipeline::Pipeline;
use super::error::CliError;
use super::{Context, Ui};
use pleach_engine::preview_process::Report;
use pleach_forge::{Forge, ReportOutcome, Token};

/// Maximum wait for the end of a rate limit.
const PATIENCE: Duration = Duration::from_mins(2);
/// Variable with the token.
const TOKEN: &str = "PLEACH_FORGE_TOKEN";

/// Options that name a forge.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ForgeArgs {
    /// Product of the forge [default: detected from the CI pipeline]
    #[arg(
        long = "forge",
        value_name = "PRODUCT",
        env = "PLEACH_FORGE",
        hide_env_values = true,
        hide_short_help = true
    )]
    product: Option<Product>,

    /// Root of its API, such as `https://git.example.org/api/v4` [default: from the
    /// product and the git remote]
    #[arg(
        long,
        value_name = "URL",
        env = "PLEACH_FORGE_URL",
        hide_env_values = true,
        hide_short_help = true
    )]
    forge_url: Option<String>,

    /// Name of the repository on the forge, OWNER/NAME [default: from the git remote]
    #[arg(
        long,
        value_name = "NAME",
        env = "PLEACH_FORGE_PROJECT",
        hide_env_values = true,
        hide_short_help = true
    )]
    forge_project: Option<String>,

    /// File with a token for the forge [default: an environment variable, see
    /// docs/guides/preview-pull-requests.md]
    #[arg(
        long,
        value_name = "FILE",
        env = "PLEACH_FORGE_TOKEN_FILE",
        hide_env_values = true,
        hide_short_help = true
    )]
    forge_token_file: Option<PathBuf>,
}

/// Options of commands that publish to a forge.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ReportArgs {
    /// Create or update a comment with the preview on the pull request, and set the
    /// status of its newest commit
    ///
    /// The pull request is detected in pipelines of GitHub, GitLab and Gitea. The
    /// following options replace missing values.
    #[arg(long)]
    pub(super) comment: bool,

    /// Number of the pull request [default: the pull request of the pipeline]
    #[arg(
        long,
        value_name = "NUMBER",
        env = "PLEACH_PULL_REQUEST",
        hide_env_values = true
    )]
    pull_request: Option<u64>,

    #[command(flatten)]
    forge: ForgeArgs,

    /// Preview an unreviewed change in a sandbox, for those of the named
    /// environments that it touches
    #[arg(long, hide = true)]
    pub(super) untrusted: bool,
}

/// Products, as options name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Product {
    /// GitHub.
    Github,
    /// GitLab.
    Gitlab,
    /// Gitea or Forgejo.
    Gitea,
}

impl From<Product> for ForgeKind {
    fn from(product: Product) -> Self {
        match product {
            Product::Github => Self::Github,
            Product::Gitlab => Self::Gitlab,
            Product::Gitea => Self::Gitea,
        }
    }
}

/// Returns an environment variable. `None` if it is empty.
fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "settings are read here")]
    let value = std::env::var(name).ok();
    value.filter(|value| !value.is_empty())
}

impl ForgeArgs {
    /// Returns the forge and the pipeline, if any. `None` if there is no forge.
    fn find(&self, remote: Option<&str>) -> Result<Option<(Forge, Option<Pipeline>)>, CliError> {
        let pipeline = Pipeline::find(&variable);
        let kind = self.product.map(ForgeKind::from);
        let kind = kind.or_else(|| Some(pipeline.as_ref()?.kind));
        let Some(kind) = kind else {
            return Ok(None);
        };
        // Values of the pipeline only apply to its own forge.
        let pipeline = pipeline.filter(|one| one.kind == kind);
        let usage =
            |message: String| CliError::usage(format!("cannot determine the forge: {message}"));
        let api = self.forge_url.clone();
        let api = api.or_else(|| pipeline.as_ref().map(|one| one.api.clone()));
        let project = self.forge_project.clone();
        let project = project.or_else(|| pipeline.as_ref().map(|one| one.project.clone()));
        let address = match (api, project, remote) {
            (Some(api), Some(project), _) => {
                check_api(&api).and_then(|api| ForgeAddress::named(kind, api, &project))
            }
            (api, project, Some(remote)) => {
                let found = ForgeAddress::of(kind, remote, api.as_deref());
                match project {
                    Some(project) => {
                        found.and_then(|found| ForgeAddress::named(kind, found.api, &project))
                    }
                    None => found,
                }
            }
            _ => Err("set --forge-url and --forge-project".to_owned()),
        };
        let address = address.map_err(usage)?;
        let token = self.token(pipeline.as_ref())?;
        let forge = Forge::new(address, token, PATIENCE)?;
        Ok(Some((forge, pipeline)))
    }

    /// Returns the forge, if the user named its product.
    pub(super) fn named(&self, remote: Option<&str>) -> Result<Option<Forge>, CliError> {
        if self.product.is_none() {
            return Ok(None);
        }
        Ok(self.find(remote)?.map(|(forge, _)| forge))
    }

    fn token(&self, pipeline: Option<&Pipeline>) -> Result<Token, CliError> {
        if let Some(path) = &self.forge_token_file {
            return Ok(Token::File(path.clone()));
        }
        let names = [Some(TOKEN), pipeline.map(|one| one.token)];
        let mut values = names.into_iter().flatten();
        let token = values.find_map(|name| Some((name, variable(name)?)));
        let (name, value) = token.ok_or_else(|| {
            let also = pipeline.map_or(String::new(), |one| format!(" or {}", one.token));
            CliError::usage("there is no token for the forge").hint(format!(
                "name a file with --forge-token-file, or set {TOKEN}{also}"
            ))
        })?;
        Ok(Token::Value {
            place: format!("the variable {name}"),
            value: value.into(),
        })
    }
}

impl ReportArgs {
    /// Publishes a preview as a comment on the pull request and as the status of its newest commit.
    /// Skips this if there is a newer commit, which gets its own preview.
    pub(super) async fn report(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        report: &Report,
    ) -> Result<(), CliError> {
        let remote = ctx.source()?.remote("origin");
        let (forge, pipeline) = self.forge.find(remote.as_deref())?.ok_or_else(|| {
            CliError::usage("--comment needs a forge: no known CI pipeline was detected")
                .hint("name it with --forge")
        })?;
        let pipeline = pipeline.as_ref();
        let number = self.pull_request.or_else(|| pipeline?.number);
        let number = number.ok_or_else(|| {
            CliError::usage("--comment needs a pull request: the pipeline has none")
                .hint("name it with --pull-request")
        })?;
        let pull = forge.pull_request(number).await?;
        if let Some(head) = pipeline.and_then(|one| one.head.as_ref())
            && *head != pull.head
        {
            ui.status("not published: the pull request has a newer commit with its own preview");
            return Ok(());
        }
        let outcome = match forge
            .report(number, &report.marker, &report.comment)
            .await?
        {
            ReportOutcome::Created => "created",
            ReportOutcome::Updated => "updated",
            ReportOutcome::Unchanged => "unchanged",
        };
        ui.status(format_args!("comment on pull request {number}: {outcome}"));
        forge.set_status(&pull.head, &report.status()).await?;
        Ok(())
    }
}
