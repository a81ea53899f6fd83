//! The reads of listings, which differ between the databases only in their statements.

/// Implements the reads of [`Dialect`](super::Dialect) that take positions or an operation, except
/// `ids`. The arguments are how a statement takes a text, and what it takes of a position, in the
/// order of its parameters. Some databases hand texts over as bytes, so they are read as such.
/// A macro, because generic code would name the traits of each column's type for each method.
macro_rules! reads {
    (|$text:ident| $as_text:expr, |$at:ident| $($of_position:expr),+) => {
        async fn window(
            &self,
            on: &mut super::Conn<Self>,
            scope: &super::ListScope,
            after: &super::Position,
            limit: i64,
        ) -> Result<super::Window, self::sqlx::Error> {
            let $at = after;
            let query = sqlx::query(sql(self.statements.listing.window(scope)))
                $(.bind($of_position))+;
            let query = match scope {
                super::ListScope::OfOperation($text) => query.bind($as_text),
                super::ListScope::All => query,
            };
            let rows = query.bind(limit).fetch_all(on).await?;
            Ok(super::Window::of_all(super::listing::rows!(rows)?, limit))
        }

        async fn window_end(
            &self,
            on: &mut super::Conn<Self>,
            after: &super::Position,
            limit: i64,
        ) -> Result<Option<super::Position>, self::sqlx::Error> {
            let $at = after;
            let query = sqlx::query(sql(&self.statements.listing.window_end))
                $(.bind($of_position))+
                .bind(limit.saturating_sub(1));
            let Some(row) = query.fetch_optional(on).await? else {
                return Ok(None);
            };
            Ok(Some(super::Position {
                sweep_at: row.try_get(0)?,
                operation: row.try_get_unchecked(1)?,
                key: row.try_get_unchecked(2)?,
            }))
        }

        async fn window_in_states(
            &self,
            on: &mut super::Conn<Self>,
            states: [&str; 2],
            after: &super::Position,
            last: &super::Position,
        ) -> Result<Vec<super::ListedRow>, self::sqlx::Error> {
            let $at = after;
            let query = sqlx::query(sql(&self.statements.listing.window_in_states))
                $(.bind($of_position))+;
            let $at = last;
            let query = query
                $(.bind($of_position))+
                .bind(states[0])
                .bind(states[1]);
            super::listing::rows!(query.fetch_all(on).await?)
        }

        async fn count(
            &self,
            on: &mut super::Conn<Self>,
            after: &super::Position,
            last: &super::Position,
        ) -> Result<Vec<super::CountedRows>, self::sqlx::Error> {
            let $at = after;
            let query = sqlx::query(sql(&self.statements.listing.count))
                $(.bind($of_position))+;
            let $at = last;
            let query = query $(.bind($of_position))+;
            let rows = query.fetch_all(on).await?;
            let counts = rows.into_iter().map(|row| {
                Ok(super::CountedRows {
                    operation: row.try_get_unchecked(0)?,
                    state: row.try_get_unchecked(1)?,
                    rows: row.try_get(2)?,
                    silent_for: row.try_get(3)?,
                })
            });
            counts.collect()
        }

        async fn window_of_keys(
            &self,
            on: &mut super::Conn<Self>,
            operation: &str,
            keys: &KeyRange,
            limit: i64,
        ) -> Result<Vec<super::ListedRow>, self::sqlx::Error> {
            let $text = operation;
            let query = sqlx::query(sql(&self.statements.listing.window_of_keys)).bind($as_text);
            let $text = keys.from.as_str();
            let query = query.bind($as_text);
            let $text = keys.before.as_str();
            let query = query.bind($as_text).bind(limit);
            super::listing::rows!(query.fetch_all(on).await?)
        }

        async fn has_more(
            &self,
            on: &mut super::Conn<Self>,
            operation: &str,
            rows: i64,
        ) -> Result<bool, self::sqlx::Error> {
            let $text = operation;
            let query = sqlx::query(sql(&self.statements.listing.has_more))
                .bind($as_text)
                .bind(rows);
            Ok(query.fetch_optional(on).await?.is_some())
        }
    };
}
pub(super) use reads;

/// Reads the rows of a listing: the columns of `Row`, the operation, the key and the time.
macro_rules! rows {
    ($rows:expr) => {
        $rows
            .into_iter()
            .map(|row| {
                let position = super::Position {
                    operation: row.try_get_unchecked(15)?,
                    key: row.try_get_unchecked(16)?,
                    sweep_at: row.try_get(17)?,
                };
                Ok(super::ListedRow {
                    position,
                    row: super::read_row!(row)?,
                })
            })
            .collect::<Result<Vec<_>, self::sqlx::Error>>()
    };
}
pub(super) use rows;
