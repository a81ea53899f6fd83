//! PgBouncer in front of a private PostgreSQL.

use idem_testkit::{PgBouncerServer, PostgresServer};

use crate::databases::ask;

#[tokio::test]
async fn pgbouncer_answers_for_its_server_and_pools_as_its_settings_say() {
    let server = PostgresServer::start().await.unwrap();
    for (settings, mode) in [
        (&[][..], "transaction"),
        (&["pool_mode = session"][..], "session"),
    ] {
        let bouncer = PgBouncerServer::start_with(&server, settings)
            .await
            .unwrap();
        assert_eq!(ask(&bouncer.url(), "SELECT current_database()"), "postgres");
        let admin = bouncer.url().strip_suffix("postgres").unwrap().to_owned() + "pgbouncer";
        let config = ask(&admin, "SHOW CONFIG");
        assert!(
            config
                .lines()
                .any(|line| line.starts_with(&format!("pool_mode|{mode}"))),
            "{config}"
        );
        bouncer.restart().await.unwrap();
        assert_eq!(ask(&bouncer.url(), "SELECT 1"), "1");
    }
}
