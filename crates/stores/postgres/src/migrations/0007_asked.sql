-- What the nodes that serve the route have asked for, as JSON. NULL: nobody has said so yet.
ALTER TABLE {route} ADD COLUMN asked text;
