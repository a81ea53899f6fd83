//! Makes the faults of a plan.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use idem_testkit::Proxy;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::broker::Broker;
use crate::history::{Event, Journal};
use crate::plan::{Fault, Kind};
use crate::process::Process;
use crate::settings::Settings;
use crate::topology::Servers;

/// Everything that can be hit. What is hit is locked, so that no two faults meet at one place; the
/// second is left out.
#[derive(Debug)]
pub(crate) struct Field {
    settings: Settings,
    journal: Journal,
    servers: Servers,
    server: Mutex<()>,
    broker: Option<Arc<Broker>>,
    /// When the broker may be killed again.
    broker_rests: Mutex<Option<Instant>>,
    places: Vec<Place>,
    /// The number of the next process, and of the next fault.
    next: AtomicU64,
}

/// A worker process, and its way to the server.
#[derive(Debug)]
struct Place {
    process: Mutex<Option<Process>>,
    way: Mutex<()>,
    proxy: Option<Proxy>,
    to_broker: Mutex<()>,
    broker: Option<Proxy>,
}

/// How long the broker is left alone after it was killed: RabbitMQ takes seconds to start.
const REST: Duration = Duration::from_secs(12);

impl Field {
    pub(crate) async fn start(settings: Settings, journal: Journal) -> Result<Arc<Self>> {
        let servers = Servers::start(settings.topology, &settings.folder).await?;
        let broker = match settings.broker {
            Some(kind) => Some(Arc::new(Broker::start(kind).await?)),
            None => None,
        };
        let mut places = Vec::new();
        for _ in 0..settings.processes {
            let proxy = servers.proxy().await?;
            let to_broker = match &broker {
                Some(broker) => Some(broker.proxy().await?),
                None => None,
            };
            let process = Mutex::new(None);
            places.push(Place {
                process,
                way: Mutex::new(()),
                proxy,
                to_broker: Mutex::new(()),
                broker: to_broker,
            });
        }
        let server = Mutex::new(());
        let broker_rests = Mutex::new(None);
        let next = AtomicU64::new(1);
        let field = Self {
            settings,
            journal,
            servers,
            server,
            broker,
            broker_rests,
            places,
            next,
        };
        for place in &field.places {
            *place.process.lock().await = Some(field.process(place)?);
        }
        Ok(Arc::new(field))
    }

    /// Makes the faults, each at its time, until the run is over or `enough` says so; all are
    /// healed in the end.
    pub(crate) async fn suffer(
        self: &Arc<Self>,
        faults: Vec<Fault>,
        enough: impl Future<Output = ()>,
    ) -> Result<()> {
        let start = tokio::time::Instant::now();
        let mut tasks = JoinSet::new();
        let all = async {
            for fault in faults {
                tokio::time::sleep_until(start + fault.at).await;
                let field = Arc::clone(self);
                tasks.spawn(async move { field.hit(&fault).await });
            }
            tokio::time::sleep_until(start + self.settings.length).await;
        };
        tokio::select! {
            () = all => {}
            () = enough => {}
        }
        while let Some(hit) = tasks.join_next().await {
            hit??;
        }
        Ok(())
    }

    /// The broker, if there is one.
    pub(crate) fn broker(&self) -> Option<&Arc<Broker>> {
        self.broker.as_ref()
    }

    /// Waits until the servers have found together again.
    pub(crate) async fn settled(&self) -> Result<()> {
        self.servers.settled().await
    }

    /// Ends all processes; those that do not end by themselves are a violation, which the history
    /// shows.
    pub(crate) async fn end(&self) -> Result<()> {
        self.journal.write(Event::Healed);
        let mut ends = JoinSet::new();
        for place in &self.places {
            if let Some(process) = place.process.lock().await.take() {
                ends.spawn(process.end());
            }
        }
        while let Some(end) = ends.join_next().await {
            end??;
        }
        Ok(())
    }

    async fn hit(&self, fault: &Fault) -> Result<()> {
        let place = &self.places[fault.target % self.places.len()];
        match fault.kind {
            Kind::Kill | Kind::Pause => {
                let Ok(mut slot) = place.process.try_lock() else {
                    return Ok(());
                };
                match slot.as_mut() {
                    Some(process) if fault.kind == Kind::Kill => {
                        let _over = self.begins(fault.kind, Some(process.number));
                        process.kill().await?;
                        self.journal.write(Event::Killed {
                            process: process.number,
                        });
                        sleep(fault.length).await;
                        *slot = Some(self.process(place)?);
                    }
                    Some(process) => {
                        let _over = self.begins(fault.kind, Some(process.number));
                        process.stop();
                        sleep(fault.length).await;
                        process.go_on();
                    }
                    None => {}
                }
            }
            Kind::Cut | Kind::Swallow | Kind::Delay => {
                let (Ok(_way), Some(proxy)) = (place.way.try_lock(), &place.proxy) else {
                    return Ok(());
                };
                let _over = self.begins(fault.kind, None);
                match fault.kind {
                    Kind::Cut => proxy.cut(),
                    Kind::Swallow => proxy.swallow_replies(true),
                    _ => proxy.delay(fault.delay),
                }
                sleep(fault.length).await;
                proxy.restore();
            }
            Kind::BrokerCut => {
                let (Ok(_way), Some(proxy)) = (place.to_broker.try_lock(), &place.broker) else {
                    return Ok(());
                };
                let _over = self.begins(fault.kind, None);
                proxy.cut();
                sleep(fault.length).await;
                proxy.restore();
            }
            Kind::BrokerKill => {
                let (Ok(mut rests), Some(broker)) = (self.broker_rests.try_lock(), &self.broker)
                else {
                    return Ok(());
                };
                if rests.is_some_and(|until| Instant::now() < until) {
                    return Ok(());
                }
                let _over = self.begins(fault.kind, None);
                broker.kill(fault.length).await?;
                *rests = Some(Instant::now() + REST);
            }
            Kind::ServerKill | Kind::ServerPause => {
                let Ok(_server) = self.server.try_lock() else {
                    return Ok(());
                };
                let _over = self.begins(fault.kind, None);
                if fault.kind == Kind::ServerPause {
                    self.servers.pause(fault.target, fault.length).await?;
                } else {
                    let down = |down| {
                        self.journal.write(if down {
                            Event::ServerDown
                        } else {
                            Event::ServerUp
                        });
                    };
                    self.servers.kill(fault.target, fault.length, down).await?;
                }
            }
        }
        Ok(())
    }

    fn process(&self, place: &Place) -> Result<Process> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let broker = self
            .broker
            .as_ref()
            .zip(place.broker.as_ref())
            .map(|(broker, proxy)| broker.url(proxy));
        let process = Process::start(
            &self.settings,
            number,
            &self.servers.url(place.proxy.as_ref()),
            broker.as_deref(),
        )?;
        self.journal.write(Event::Started { process: number });
        Ok(process)
    }

    fn begins(&self, kind: Kind, process: Option<u64>) -> Over<'_> {
        let fault = self.next.fetch_add(1, Ordering::Relaxed);
        self.journal.write(Event::FaultBegan {
            fault,
            kind: kind.name().into(),
            process,
        });
        Over {
            fault,
            journal: &self.journal,
        }
    }
}

/// Writes down that a fault is over, however that comes.
struct Over<'a> {
    fault: u64,
    journal: &'a Journal,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.journal.write(Event::FaultEnded { fault: self.fault });
    }
}
