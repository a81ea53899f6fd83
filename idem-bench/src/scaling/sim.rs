//! A simulation of processes and primaries, event by event, from a seed.
//!
//! A process has processors that take work in order of arrival: a step of a call, sending collected
//! commands, reading answers. Its commands to one primary go over one connection, together as in
//! `idem-redis/src/batch.rs`: alone while few are under way, else as soon as the callers that can
//! run have run. A primary is one thread. It reads from connection after connection, in reads of a
//! limited size, and answers each read as a whole. Transport takes a fixed time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp, Exp1, Zipf};

use crate::report::Kind;

/// As in `batch.rs`: below `FEW` under way, commands go by themselves; `MOST` go in one message.
const FEW: usize = 4;
const MOST: usize = 256;
/// The share of the calls that come before anything is counted.
const WARM: f64 = 0.2;

/// Microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// A claim of either kind is taken to cost the same.
    pub(super) server_claim: f64,
    pub(super) server_commit: f64,
    /// Of each read.
    pub(super) server_message: f64,
    /// In two steps for a replay, in three for a first execution, each as long as the others.
    pub(super) client_first: f64,
    pub(super) client_replay: f64,
    /// Half of it for sending, half for the answer.
    pub(super) client_message: f64,
    /// One way.
    pub(super) delay: f64,
    /// Commands that fit into one read, of first executions and of replays.
    pub(super) per_read: [f64; 2],
}

/// Which keys calls have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spread {
    /// Each its own.
    Uniform,
    /// A few of them again and again: `(keys, exponent)`.
    Zipf(u32, f64),
}

/// How calls come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Load {
    /// So many a second, at random, whatever becomes of them.
    Open(f64),
    /// So many tasks in all, each with one call after the other.
    Closed(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Fixed,
    /// Exponential at the server, for comparison with the closed formula.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests compare"))]
    Exponential,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    pub(super) costs: Costs,
    pub(super) kind: Kind,
    pub(super) spread: Spread,
    pub(super) processes: usize,
    /// Of each process.
    pub(super) processors: usize,
    pub(super) primaries: usize,
    pub(super) load: Load,
    pub(super) calls: usize,
    /// Whether commands are put together.
    pub(super) together: bool,
    pub(super) service: Service,
    pub(super) seed: u64,
}

/// The result. Times are microseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// Calls a second that came to their end.
    pub(super) rate: f64,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Reads of the servers for each call that came to its end.
    pub(super) messages: f64,
    /// The share of the time in which the busiest primary was busy.
    pub(super) busiest: f64,
    /// Calls that were answered by another's flight in their process.
    pub(super) shared: f64,
}

#[derive(Clone, Copy, Default)]
struct Call {
    process: usize,
    primary: usize,
    key: Option<u64>,
    arrived: u64,
    /// Answers it has had.
    answers: u8,
    /// Found another's flight.
    follows: bool,
}

enum Work {
    Step(usize),
    /// Puts what waits into a message, for a primary.
    Gather(usize),
    /// Writes what is to go to a primary.
    Write(usize),
    /// Reads what a primary has answered by then.
    Read(usize),
}

/// A call, and the message its command is in.
#[derive(Clone, Copy)]
struct Command {
    call: usize,
    message: usize,
}

struct Message {
    left: usize,
    calls: Vec<usize>,
}

/// From one process to one primary.
#[derive(Default)]
struct Connection {
    waiting: Vec<usize>,
    is_scheduled: bool,
    under_way: usize,
    to_write: Vec<Command>,
    is_writing: bool,
    /// At the primary, and not read yet.
    sent: VecDeque<Command>,
    /// At the process, and not read yet.
    answered: Vec<Command>,
    is_reading: bool,
}

#[derive(Default)]
struct Process {
    ready: VecDeque<Work>,
    busy: usize,
    /// By key, who follows its leader.
    flights: HashMap<u64, Vec<usize>>,
}

#[derive(Default)]
struct Primary {
    /// The processes of which there is something to read, each once.
    readable: VecDeque<usize>,
    is_busy: bool,
    busy_for: u64,
}

enum Event {
    Arrive,
    /// The work of a process is done.
    Done(usize, Work),
    Sent {
        process: usize,
        primary: usize,
        commands: Vec<Command>,
    },
    Served {
        process: usize,
        primary: usize,
        commands: Vec<Command>,
    },
    Answered {
        process: usize,
        primary: usize,
        commands: Vec<Command>,
    },
}

struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

struct Simulation {
    scenario: Scenario,
    random: StdRng,
    zipf: Option<Zipf<f64>>,
    now: u64,
    numbers: u64,
    events: BinaryHeap<Reverse<Entry>>,
    calls: Vec<Call>,
    free: Vec<usize>,
    messages: Vec<Message>,
    free_messages: Vec<usize>,
    processes: Vec<Process>,
    connections: Vec<Connection>,
    primaries: Vec<Primary>,
    arrived: usize,
    ended: usize,
    /// When counting began, and what had been before.
    since: Option<u64>,
    counted: usize,
    reads: usize,
    shared: usize,
    times: Vec<u64>,
}

/// Simulates a scenario.
pub(super) fn run(scenario: &Scenario) -> Result<Outcome> {
    let zipf = match scenario.spread {
        Spread::Uniform => None,
        Spread::Zipf(keys, exponent) => Some(Zipf::new(f64::from(keys), exponent).context("no such distribution")?),
    };
    let mut simulation = Simulation {
        scenario: *scenario,
        random: StdRng::seed_from_u64(scenario.seed),
        zipf,
        now: 0,
        numbers: 0,
        events: BinaryHeap::new(),
        calls: Vec::new(),
        free: Vec::new(),
        messages: Vec::new(),
        free_messages: Vec::new(),
        processes: (0..scenario.processes).map(|_| Process::default()).collect(),
        connections: (0..scenario.processes * scenario.primaries).map(|_| Connection::default()).collect(),
        primaries: (0..scenario.primaries).map(|_| Primary::default()).collect(),
        arrived: 0,
        ended: 0,
        since: None,
        counted: 0,
        reads: 0,
        shared: 0,
        times: Vec::new(),
    };
    match scenario.load {
        Load::Open(_) => simulation.after(0, Event::Arrive),
        Load::Closed(tasks) => (0..tasks).for_each(|_| simulation.arrive()),
    }
    simulation.go();
    Ok(simulation.result())
}

fn nanoseconds(microseconds: f64) -> u64 {
    (microseconds * 1e3).round() as u64
}

impl Simulation {
    fn go(&mut self) {
        while let Some(Reverse(Entry { at, event, .. })) = self.events.pop() {
            self.now = at;
            match event {
                Event::Arrive => {
                    self.arrive();
                    if let Load::Open(rate) = self.scenario.load {
                        let pause: f64 = Exp::new(rate / 1e6).map_or(0.0, |exp| exp.sample(&mut self.random));
                        self.after(nanoseconds(pause), Event::Arrive);
                    }
                }
                Event::Done(process, work) => self.done(process, &work),
                Event::Sent { process, primary, commands } => {
                    let connection = self.connection(process, primary);
                    let is_first = connection.sent.is_empty();
                    connection.sent.extend(commands);
                    if is_first {
                        self.primaries[primary].readable.push_back(process);
                    }
                    self.serve(primary);
                }
                Event::Served { process, primary, commands } => {
                    self.primaries[primary].is_busy = false;
                    self.after(nanoseconds(self.scenario.costs.delay), Event::Answered { process, primary, commands });
                    self.serve(primary);
                }
                Event::Answered { process, primary, commands } => {
                    let connection = self.connection(process, primary);
                    connection.answered.extend(commands);
                    if !std::mem::replace(&mut connection.is_reading, true) {
                        self.ready(process, Work::Read(primary));
                    }
                }
            }
            if self.ended >= self.scenario.calls {
                return;
            }
        }
    }

    fn arrive(&mut self) {
        self.count_from_here();
        let process = match self.scenario.load {
            Load::Open(_) => self.random.random_range(0..self.scenario.processes),
            Load::Closed(_) => self.arrived % self.scenario.processes,
        };
        self.begin(process);
    }

    fn begin(&mut self, process: usize) {
        let key = self.zipf.map(|zipf| zipf.sample(&mut self.random) as u64);
        // Keys fall into slots as if at random; a key always into the same.
        let primary = match key {
            Some(key) => (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % self.scenario.primaries,
            None => self.random.random_range(0..self.scenario.primaries),
        };
        let call = Call { process, primary, key, arrived: self.now, answers: 0, follows: false };
        let index = if let Some(free) = self.free.pop() {
            self.calls[free] = call;
            free
        } else {
            self.calls.push(call);
            self.calls.len() - 1
        };
        self.arrived += 1;
        self.ready(process, Work::Step(index));
    }

    fn after(&mut self, pause: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse(Entry { at: self.now + pause, number: self.numbers, event }));
    }

    /// A process has something to do.
    fn ready(&mut self, process: usize, work: Work) {
        self.processes[process].ready.push_back(work);
        self.work(process);
    }

    fn work(&mut self, process: usize) {
        while self.processes[process].busy < self.scenario.processors {
            let Some(work) = self.processes[process].ready.pop_front() else { return };
            self.processes[process].busy += 1;
            let costs = &self.scenario.costs;
            let takes = match &work {
                Work::Step(_) if self.scenario.kind == Kind::First => costs.client_first / 3.0,
                Work::Step(_) => costs.client_replay / 2.0,
                Work::Gather(_) => 0.0,
                Work::Write(_) | Work::Read(_) => costs.client_message / 2.0,
            };
            self.after(nanoseconds(takes), Event::Done(process, work));
        }
    }

    fn done(&mut self, process: usize, work: &Work) {
        self.processes[process].busy -= 1;
        match *work {
            Work::Step(call) => self.step(call),
            Work::Gather(primary) => self.gather(process, primary),
            Work::Write(primary) => {
                let connection = self.connection(process, primary);
                connection.is_writing = false;
                let commands = std::mem::take(&mut connection.to_write);
                self.after(nanoseconds(self.scenario.costs.delay), Event::Sent { process, primary, commands });
            }
            Work::Read(primary) => {
                let connection = self.connection(process, primary);
                connection.is_reading = false;
                let commands = std::mem::take(&mut connection.answered);
                self.read(process, &commands);
            }
        }
        self.work(process);
    }

    fn step(&mut self, index: usize) {
        let call = self.calls[index];
        let answers = if self.scenario.kind == Kind::First { 2 } else { 1 };
        if call.follows || call.answers == answers {
            self.end(index);
            return;
        }
        if call.answers == 0
            && let Some(key) = call.key
        {
            let flights = &mut self.processes[call.process].flights;
            if let Some(followers) = flights.get_mut(&key) {
                followers.push(index);
                self.calls[index].follows = true;
                return;
            }
            flights.insert(key, Vec::new());
        }
        let together = self.scenario.together;
        let connection = self.connection(call.process, call.primary);
        if !together || (connection.under_way < FEW && connection.waiting.is_empty()) {
            connection.under_way += 1;
            self.send(call.process, call.primary, vec![index]);
        } else {
            connection.waiting.push(index);
            if !std::mem::replace(&mut connection.is_scheduled, true) {
                self.ready(call.process, Work::Gather(call.primary));
            }
        }
    }

    fn gather(&mut self, process: usize, primary: usize) {
        let connection = self.connection(process, primary);
        connection.is_scheduled = false;
        let waiting = std::mem::take(&mut connection.waiting);
        connection.under_way += waiting.len();
        for message in waiting.chunks(MOST) {
            self.send(process, primary, message.to_vec());
        }
    }

    /// Hands a message to the connection's task, which writes all that it has been handed by then.
    fn send(&mut self, process: usize, primary: usize, calls: Vec<usize>) {
        let message = self.free_messages.pop().unwrap_or_else(|| {
            self.messages.push(Message { left: 0, calls: Vec::new() });
            self.messages.len() - 1
        });
        let connection = self.connection(process, primary);
        connection.to_write.extend(calls.iter().map(|&call| Command { call, message }));
        if !std::mem::replace(&mut connection.is_writing, true) {
            self.ready(process, Work::Write(primary));
        }
        self.messages[message] = Message { left: calls.len(), calls };
    }

    fn serve(&mut self, primary: usize) {
        if self.primaries[primary].is_busy {
            return;
        }
        let Some(process) = self.primaries[primary].readable.pop_front() else { return };
        let most =
            if self.scenario.together { self.scenario.costs.per_read[self.scenario.kind as usize] as usize } else { 1 };
        let connection = self.connection(process, primary);
        let commands: Vec<Command> = connection.sent.drain(..most.min(connection.sent.len())).collect();
        if !connection.sent.is_empty() {
            self.primaries[primary].readable.push_back(process);
        }
        let costs = self.scenario.costs;
        let of = |command: &Command| {
            if self.calls[command.call].answers == 0 { costs.server_claim } else { costs.server_commit }
        };
        let mut takes = costs.server_message + commands.iter().map(of).sum::<f64>();
        if self.scenario.service == Service::Exponential {
            let random: f64 = Exp1.sample(&mut self.random);
            takes *= random;
        }
        let takes = nanoseconds(takes);
        self.reads += 1;
        let state = &mut self.primaries[primary];
        state.is_busy = true;
        state.busy_for += takes;
        self.after(takes, Event::Served { process, primary, commands });
    }

    fn read(&mut self, process: usize, commands: &[Command]) {
        for command in commands {
            let message = &mut self.messages[command.message];
            message.left -= 1;
            if message.left > 0 {
                continue;
            }
            // Callers learn when the whole message is answered.
            let calls = std::mem::take(&mut message.calls);
            self.free_messages.push(command.message);
            let primary = self.calls[command.call].primary;
            self.connection(process, primary).under_way -= calls.len();
            for call in calls {
                self.calls[call].answers += 1;
                self.processes[process].ready.push_back(Work::Step(call));
            }
        }
    }

    fn end(&mut self, index: usize) {
        let Call { process, key, arrived, follows, .. } = self.calls[index];
        if follows {
            self.shared += 1;
        } else if let Some(followers) = key.and_then(|key| self.processes[process].flights.remove(&key)) {
            self.processes[process].ready.extend(followers.into_iter().map(Work::Step));
        }
        self.ended += 1;
        if self.since.is_some_and(|since| arrived >= since) {
            self.times.push(self.now - arrived);
        }
        self.free.push(index);
        if let Load::Closed(_) = self.scenario.load {
            // The same task goes on in its process.
            self.count_from_here();
            self.begin(process);
        }
    }

    /// From here on, if all that comes before has been.
    fn count_from_here(&mut self) {
        let warm = (self.scenario.calls as f64 * WARM) as usize;
        if self.since.is_none() && self.ended >= warm {
            self.since = Some(self.now);
            self.counted = self.ended;
            self.reads = 0;
            self.shared = 0;
            self.primaries.iter_mut().for_each(|primary| primary.busy_for = 0);
        }
    }

    fn connection(&mut self, process: usize, primary: usize) -> &mut Connection {
        &mut self.connections[process * self.scenario.primaries + primary]
    }

    fn result(mut self) -> Outcome {
        let length = (self.now - self.since.unwrap_or(0)) as f64;
        let calls = (self.ended - self.counted) as f64;
        self.times.sort_unstable();
        let quantile = |share: f64| {
            let place = (self.times.len().saturating_sub(1) as f64 * share).round() as usize;
            self.times.get(place).map_or(f64::NAN, |time| *time as f64 / 1e3)
        };
        let busiest = self.primaries.iter().map(|primary| primary.busy_for).max().unwrap_or(0);
        Outcome {
            rate: calls / length * 1e9,
            mean: self.times.iter().sum::<u64>() as f64 / self.times.len() as f64 / 1e3,
            p50: quantile(0.5),
            p99: quantile(0.99),
            messages: self.reads as f64 / calls,
            busiest: busiest as f64 / length,
            shared: self.shared as f64 / calls,
        }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Costs = Costs {
        server_claim: 0.0,
        server_commit: 0.0,
        server_message: 0.0,
        client_first: 0.0,
        client_replay: 0.0,
        client_message: 0.0,
        delay: 0.0,
        per_read: [40.0; 2],
    };
    const USUAL: Costs = Costs {
        server_claim: 3.0,
        server_commit: 5.0,
        server_message: 10.0,
        client_first: 20.0,
        client_replay: 10.0,
        client_message: 12.0,
        delay: 20.0,
        per_read: [40.0; 2],
    };

    fn scenario(costs: Costs, load: Load) -> Scenario {
        Scenario {
            costs,
            kind: Kind::Replay,
            spread: Spread::Uniform,
            processes: 1,
            processors: 1,
            primaries: 1,
            load,
            calls: 150_000,
            together: false,
            service: Service::Fixed,
            seed: 7,
        }
    }

    /// One server, work of 10 µs, 70 % busy: the time in it by Pollaczek and Khinchine.
    #[test]
    fn with_one_queue_times_are_those_of_the_formula() {
        let costs = Costs { server_claim: 10.0, ..NOTHING };
        let (service, busy) = (10.0, 0.7);
        for (kind, variation) in [(Service::Fixed, 0.0), (Service::Exponential, 1.0)] {
            let formula = service * (1.0 + busy / (1.0 - busy) * (1.0 + variation) / 2.0);
            let found = run(&Scenario { service: kind, ..scenario(costs, Load::Open(70_000.0)) }).unwrap();
            assert!((found.mean / formula - 1.0).abs() < 0.04, "{kind:?}: {found:?}, formula {formula}");
            assert!((found.busiest - busy).abs() < 0.01, "{found:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same() {
        let zipf = Spread::Zipf(1000, 1.2);
        let one = Scenario {
            processes: 4,
            primaries: 3,
            spread: zipf,
            together: true,
            ..scenario(USUAL, Load::Open(90_000.0))
        };
        assert_eq!(run(&one).unwrap(), run(&one).unwrap());
        assert_ne!(run(&one).unwrap(), run(&Scenario { seed: 8, ..one }).unwrap());
    }

    #[test]
    fn nothing_is_faster_than_its_bound() {
        for kind in Kind::ALL {
            for (processes, primaries) in [(1, 1), (16, 1), (2, 3)] {
                let load = Load::Closed(processes * 256);
                let one = Scenario { kind, processes, primaries, together: true, ..scenario(USUAL, load) };
                let found = run(&Scenario { calls: 20_000 + processes * 2_560, ..one }).unwrap();
                let (server, client) = if kind == Kind::First { (8.0, 20.0) } else { (3.0, 10.0) };
                let bound = (1e6 * primaries as f64 / server).min(1e6 * processes as f64 / client);
                assert!(found.rate <= bound * 1.02, "{found:?} over {bound}");
                assert!(found.rate > bound * 0.5, "{found:?} far below {bound}");
                assert!(found.busiest <= 1.001, "{found:?}");
            }
        }
    }

    #[test]
    fn one_call_at_a_time_takes_the_sum_of_its_parts() {
        let one = Scenario { kind: Kind::First, together: true, calls: 1000, ..scenario(USUAL, Load::Closed(1)) };
        let found = run(&one).unwrap();
        let sum = 20.0 + 2.0 * (12.0 + 10.0) + 8.0 + 4.0 * 20.0;
        assert!((found.p50 - sum).abs() < 0.1 && (found.messages - 2.0).abs() < 0.01, "{found:?}, {sum}");
    }

    #[test]
    fn commands_of_many_callers_share_messages() {
        let one = Scenario { kind: Kind::First, together: true, calls: 50_000, ..scenario(USUAL, Load::Closed(256)) };
        let found = run(&one).unwrap();
        assert!(found.messages < 0.2, "{found:?}");
    }

    #[test]
    fn duplicates_share_the_flight_of_their_process_and_a_hot_key_stays_on_one_primary() {
        let load = Load::Open(400_000.0);
        let even = Scenario { processes: 64, primaries: 9, together: true, calls: 50_000, ..scenario(USUAL, load) };
        let hot = Scenario { spread: Spread::Zipf(100_000, 1.2), ..even };
        let (even, hot) = (run(&even).unwrap(), run(&hot).unwrap());
        assert!(hot.shared > 0.005 && even.shared < 1e-9, "{hot:?}, {even:?}");
        assert!(hot.busiest > 1.3 * even.busiest, "{hot:?}, {even:?}");
    }
}
