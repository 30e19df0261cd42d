"""Everything that changes the books. Arguments are keyword-only, faults are `ValidationError`.

Each service writes inside `books.writing()`, which locks, versions and publishes; nothing else in
the project writes these tables (the usage writer alone writes usage).
"""
