//! A visitor's browser, with cookies of its own.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fantoccini::actions::{InputSource as _, MOUSE_BUTTON_LEFT, MouseActions, PointerAction};
use fantoccini::elements::Element;
use fantoccini::wd::{Capabilities, WindowHandle};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::driver::Driver;

/// Expected events must come within this time, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(25);

/// How fast a hand is.
const BETWEEN_CLICKS: Duration = Duration::from_millis(120);

/// A browser. It ends when this is dropped.
pub struct Browser {
    client: Client,
    // Dropped last: it ends the browser.
    _driver: Driver,
}

/// The settings of a browser.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether it runs pages' scripts.
    pub scripts: bool,
    /// Whether its user prefers dark pages.
    pub dark: bool,
    /// Whether it is a phone, with the narrowest screen that there is.
    pub phone: bool,
}

/// One of a browser's tabs.
#[derive(Debug, Clone)]
pub struct Tab(WindowHandle);

impl Default for Options {
    fn default() -> Self {
        Self {
            scripts: true,
            dark: false,
            phone: false,
        }
    }
}

impl Browser {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// If chromedriver is missing, or has no browser to start.
    pub async fn start(options: Options) -> Result<Self> {
        let driver = Driver::start().await?;
        let as_root = Path::new("/proc/self")
            .metadata()
            .is_ok_and(|process| process.uid() == 0);
        let client = match connect(&driver, options, !as_root).await {
            // Some containers have no sandbox for other users either. The only pages that it would
            // keep away are our own.
            Err(error) if !as_root => connect(&driver, options, false)
                .await
                .with_context(|| format!("and with the sandbox: {error:#}")),
            result => result,
        };
        Ok(Self {
            client: client.context("chromedriver cannot start Chromium")?,
            _driver: driver,
        })
    }

    /// Opens a page, as a visitor who types its address.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn open(&self, url: &str) -> Result<()> {
        Ok(self.client.goto(url).await?)
    }

    /// The button for reloading, pressed; asked whether to send a form again, the visitor says yes.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn reload(&self) -> Result<()> {
        Ok(self.client.refresh().await?)
    }

    /// The button for going back, pressed.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn back(&self) -> Result<()> {
        Ok(self.client.back().await?)
    }

    /// Opens one more tab. The browser stays with the one that it shows.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn new_tab(&self) -> Result<Tab> {
        Ok(Tab(self.client.new_window(true).await?.handle))
    }

    /// The tab that is shown.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn tab(&self) -> Result<Tab> {
        Ok(Tab(self.client.window().await?))
    }

    /// Goes to another tab.
    ///
    /// # Errors
    ///
    /// If the browser does not answer, or the tab is gone.
    pub async fn show(&self, tab: &Tab) -> Result<()> {
        Ok(self.client.switch_to_window(tab.0.clone()).await?)
    }

    /// Forgets all cookies of the page that is shown.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn forget_cookies(&self) -> Result<()> {
        Ok(self.client.delete_all_cookies().await?)
    }

    /// Clicks on what `css` selects, once it is there.
    ///
    /// # Errors
    ///
    /// If it does not come, or clicking fails.
    pub async fn click(&self, css: &str) -> Result<()> {
        Ok(self.find(css).await?.click().await?)
    }

    /// Presses the mouse's button twice on what `css` selects, as fast as a hand does.
    ///
    /// # Errors
    ///
    /// If it does not come, or clicking fails.
    pub async fn double_click(&self, css: &str) -> Result<()> {
        let element = self.find(css).await?;
        let click = |mouse: MouseActions| {
            let button = MOUSE_BUTTON_LEFT;
            mouse
                .then(PointerAction::Down { button })
                .then(PointerAction::Up { button })
        };
        let between = PointerAction::Pause {
            duration: BETWEEN_CLICKS,
        };
        let to_it = PointerAction::MoveToElement {
            element,
            duration: None,
            x: 0.,
            y: 0.,
        };
        let mouse = click(click(MouseActions::new("mouse".to_owned()).then(to_it)).then(between));
        Ok(self.client.perform_actions(mouse).await?)
    }

    /// Types into the field that `css` selects, in place of what is in it.
    ///
    /// # Errors
    ///
    /// If it does not come, or takes no text.
    pub async fn type_into(&self, css: &str, text: &str) -> Result<()> {
        let field = self.find(css).await?;
        field.clear().await?;
        Ok(field.send_keys(text).await?)
    }

    /// A property of what `css` selects, once that is there: `value`, `disabled`, `checked`.
    ///
    /// # Errors
    ///
    /// If it does not come.
    pub async fn property(&self, css: &str, name: &str) -> Result<String> {
        Ok(self.find(css).await?.prop(name).await?.unwrap_or_default())
    }

    /// Sets the value of a field that visitors cannot reach.
    ///
    /// # Errors
    ///
    /// If it does not come.
    pub async fn tamper(&self, css: &str, value: &str) -> Result<()> {
        let field = serde_json::to_value(self.find(css).await?)?;
        self.client
            .execute(
                "arguments[0].value = arguments[1]",
                vec![field, value.into()],
            )
            .await?;
        Ok(())
    }

    /// Returns the visible text of the page.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn text(&self) -> Result<String> {
        Ok(self.find("body").await?.text().await?)
    }

    /// The path of the page that is shown.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn path(&self) -> Result<String> {
        Ok(self.client.current_url().await?.path().to_owned())
    }

    /// Waits until the page at `path` is shown and says `text`.
    ///
    /// # Errors
    ///
    /// If that does not come to pass in half a minute: says what is shown instead.
    pub async fn sees(&self, path: &str, text: &str) -> Result<()> {
        self.until(&format!("{path} with {text:?}"), async || {
            Ok(self.path().await? == path && self.text_now().await?.contains(text))
        })
        .await
    }

    /// Waits until `holds` says so. `what` is for the error.
    ///
    /// # Errors
    ///
    /// If it has not said so in half a minute: says what is shown instead.
    pub async fn until(
        &self,
        what: &str,
        mut holds: impl AsyncFnMut() -> Result<bool>,
    ) -> Result<()> {
        let mut last = None;
        let waiting = async {
            loop {
                match holds().await {
                    Ok(true) => return,
                    Ok(false) => last = None,
                    // The page may be changing just now.
                    Err(error) => last = Some(error),
                }
                sleep(LOOK).await;
            }
        };
        if timeout(LIMIT, waiting).await.is_ok() {
            return Ok(());
        }
        let last = last
            .map(|error| format!("; the last look failed: {error:#}"))
            .unwrap_or_default();
        bail!(
            "waited in vain for {what}{last}; what is shown is {}",
            self.shown().await
        );
    }

    /// Runs a script in the page.
    ///
    /// # Errors
    ///
    /// If it throws.
    pub async fn run(&self, script: &str) -> Result<Value> {
        Ok(self.client.execute(script, Vec::new()).await?)
    }

    /// A picture of the page, as PNG.
    ///
    /// # Errors
    ///
    /// If the browser does not answer.
    pub async fn screenshot(&self) -> Result<Vec<u8>> {
        Ok(self.client.screenshot().await?)
    }

    /// For errors.
    async fn shown(&self) -> String {
        let shown = async {
            Ok::<_, anyhow::Error>(format!(
                "{}:\n{}",
                self.path().await?,
                self.text_now().await?
            ))
        };
        match timeout(LOOK * 40, shown).await {
            Ok(Ok(shown)) => shown,
            Ok(Err(error)) => format!("not to be had: {error:#}"),
            Err(_) => "not to be had: a page is being loaded".to_owned(),
        }
    }

    async fn text_now(&self) -> Result<String> {
        Ok(self.client.find(Locator::Css("body")).await?.text().await?)
    }

    async fn find(&self, css: &str) -> Result<Element> {
        let element = self.client.wait().forever().every(LOOK);
        match timeout(LIMIT, element.for_element(Locator::Css(css))).await {
            Ok(found) => Ok(found?),
            Err(_) => bail!("no {css} came; what is shown is {}", self.shown().await),
        }
    }
}

impl fmt::Debug for Browser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Browser").finish_non_exhaustive()
    }
}

async fn connect(driver: &Driver, options: Options, sandbox: bool) -> Result<Client> {
    let Options {
        scripts,
        dark,
        phone,
    } = options;
    let mut args = vec![
        "--headless=new".to_owned(),
        "--window-size=1000,900".to_owned(),
        // Containers have little of what it would use instead.
        "--disable-dev-shm-usage".to_owned(),
        "--disable-gpu".to_owned(),
    ];
    if !sandbox {
        args.push("--no-sandbox".to_owned());
    }
    if dark {
        args.push("--force-dark-mode".to_owned());
    }
    let mut chrome = json!({ "args": args });
    if !scripts {
        chrome["prefs"] = json!({ "profile.managed_default_content_settings.javascript": 2 });
    }
    if phone {
        // A real window has a larger minimum width.
        chrome["mobileEmulation"] =
            json!({ "deviceMetrics": { "width": 320, "height": 640, "pixelRatio": 2.0 } });
    }
    let Value::Object(capabilities) =
        json!({ "pageLoadStrategy": "none", "goog:chromeOptions": chrome })
    else {
        bail!("capabilities are an object");
    };
    let mut builder = ClientBuilder::new(HttpConnector::new());
    let client = builder
        .capabilities(Capabilities::from(capabilities))
        .connect(&driver.url())
        .await?;
    Ok(client)
}
