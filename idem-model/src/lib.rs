//! A model of the record's life, explored exhaustively: the promises are its properties.
