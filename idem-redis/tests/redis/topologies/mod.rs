//! Under Sentinel and in a cluster: the conformance suite, and a master that dies. The program
//! `topologies` tests the rest.

mod conformance;
mod failovers;
