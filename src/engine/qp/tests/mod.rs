//! Packet scripts: one file for each topic. What a script is, and how to read one, stands in [`script`].

mod duplicates;
mod nak;
mod script;
mod sequence;
