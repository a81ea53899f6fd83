//! What takes long, or needs a server that only CI installs.

mod pgbouncer;
mod ports;
mod topologies;
