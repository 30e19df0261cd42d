"""Files of batch users: the OpenAI Files API, checked line by line on arrival."""
