//! Pictures of the pages, for a person to look at after a change to them:
//! `cargo test -p idem-browser -- --ignored --nocapture pictures` says where they are. The form in
//! light colours is the picture in the guide on tokens; after a change to it, run
//! `docs/pictures/draw.py` as well.

use std::fs;
use std::path::Path;

use anyhow::Result;
use idem_browser::{Browser, Options};

use crate::site::Site;
use crate::{BUTTON, fill, sees_an_order};

/// The picture in the guide.
const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/form.png");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "there is nothing in it that could fail"]
async fn pictures() -> Result<()> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    fs::create_dir_all(&dir)?;
    let site = Site::open().await?;
    let light = Options::default();
    let phone = Options {
        phone: true,
        ..Options::default()
    };
    for (name, options) in [
        ("light", light),
        (
            "dark",
            Options {
                dark: true,
                ..light
            },
        ),
        ("phone", phone),
    ] {
        let browser = Browser::start(options).await?;
        let picture = async |of: &str| {
            Ok::<_, anyhow::Error>(fs::write(
                dir.join(format!("{name}-{of}.png")),
                browser.screenshot().await?,
            )?)
        };

        fill(&browser, &site).await?;
        picture("form").await?;
        if name == "light" {
            fs::copy(dir.join("light-form.png"), GUIDE)?;
        }
        // A page that waits for an answer gives no picture.
        browser
            .run("document.querySelector('form').dispatchEvent(new Event('submit'))")
            .await?;
        picture("waiting").await?;
        fill(&browser, &site).await?;
        browser.click(BUTTON).await?;
        sees_an_order(&browser).await?;
        picture("order").await?;

        site.is_out_of_stock(1);
        fill(&browser, &site).await?;
        picture("form-again").await?;
        browser.click(BUTTON).await?;
        browser.sees("/orders", "Out of stock just now").await?;
        picture("explanation").await?;
        browser
            .run("document.querySelector('form').noValidate = true")
            .await?;
        browser.type_into("#name", " ").await?;
        browser.click(BUTTON).await?;
        browser.sees("/orders", "Tell us your name").await?;
        picture("mistake").await?;

        browser.open(&site.at("/orders")).await?;
        browser.sees("/orders", "yours").await?;
        picture("orders").await?;
    }
    println!("{}", dir.display());
    Ok(())
}
